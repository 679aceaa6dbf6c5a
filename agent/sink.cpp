// SPDX-License-Identifier: Apache-2.0
#include "agent/sink.h"

#include <poll.h>
#include <sys/epoll.h>

#include "base/units.h"

namespace dlrover::agent {
namespace {

constexpr std::size_t chunk_bytes = 64 << 10;

}  // namespace

Sink::Sink(Loop &loop, int fd, std::string program, std::size_t limit_bytes)
    : loop_(loop), writer_(fd), program_(std::move(program)), limit_(limit_bytes) {}

Sink::~Sink() {
    watch(false);
}

void Sink::watch(bool on) {
    if (on == watching_ || writer_.poll_fd() < 0) return;
    watching_ = on;
    if (!on) return loop_.forget(writer_.poll_fd());
    if (!loop_.watch(writer_.poll_fd(), EPOLLOUT, [this](std::uint32_t) { on_writable(); }).ok())
        watching_ = false;  // /dev/null and its like: never full
}

/// How much went out; sets broken_.
std::size_t Sink::write_some(std::string_view data) {
    std::size_t sent = 0, n = 0;
    while (sent < data.size()) {
        auto outcome = writer_.write(data.substr(sent), n);
        if (outcome == NonblockingWriter::Outcome::broken) broken_ = true;
        if (outcome != NonblockingWriter::Outcome::wrote) break;
        sent += n;
    }
    if (sent != 0) line_open_ = data[sent - 1] != '\n';
    return sent;
}

void Sink::write(std::string_view data, SpillFile *spill) {
    if (data.empty()) return;
    if (!broken_ && !overflow_ && chunks_.empty()) data.remove_prefix(write_some(data));
    if (broken_) {
        go_broken();
        return spill_over(data, spill);
    }
    if (data.empty()) return;
    if (overflow_ || buffered_ + data.size() > limit_) {
        overflow_ = true;
        return spill_over(data, spill);
    }
    keep(data, spill);
}

void Sink::keep(std::string_view data, SpillFile *spill) {
    bool joins = !chunks_.empty() && chunks_.back().spill == spill &&
                 chunks_.back().data.size() + data.size() <= chunk_bytes;
    if (joins)
        chunks_.back().data += data;
    else
        chunks_.push_back({std::string(data), spill});
    buffered_ += data.size();
    watch(true);
}

void Sink::spill_over(std::string_view data, SpillFile *spill) {
    if (!spill || data.empty()) return;
    spill->append(data);
    spilled_ += data.size();
    spill_path_ = spill->path();
}

/// True when nothing is left to send.
bool Sink::drain() {
    while (!chunks_.empty()) {
        std::string_view rest = std::string_view(chunks_.front().data).substr(offset_);
        std::size_t n = write_some(rest);
        buffered_ -= n;
        offset_ += n;
        if (n < rest.size()) return false;
        chunks_.pop_front();
        offset_ = 0;
    }
    return true;
}

void Sink::on_writable() {
    bool empty = drain();
    if (broken_) return go_broken();
    if (empty && overflow_) end_overflow();
    if (chunks_.empty()) watch(false);
}

void Sink::end_overflow() {
    overflow_ = false;
    std::string line = line_open_ ? "\n" : "";
    line += program_ + ": nobody read this stream for a while; " + format_size_bytes(spilled_);
    line += spill_path_.empty() ? " of output are lost" : " of output are in " + spill_path_;
    spilled_ = 0;
    line += '\n';
    std::string_view rest(line);
    rest.remove_prefix(write_some(rest));
    if (!rest.empty()) keep(rest, nullptr);
}

/// The reader is gone for good: what is buffered goes to the files.
void Sink::go_broken() {
    watch(false);
    for (std::size_t skip = std::exchange(offset_, 0); Chunk & chunk : chunks_) {
        spill_over(std::string_view(chunk.data).substr(skip), chunk.spill);
        skip = 0;
    }
    chunks_.clear();
    buffered_ = 0;
}

void Sink::say(std::string_view text) {
    write(program_ + ": " + std::string(text) + "\n", nullptr);
}

void Sink::drain_until(Loop::Time deadline) {
    while (!broken_ && !drain() && !broken_) {
        auto left = std::chrono::ceil<Loop::Duration>(deadline - Loop::now()).count();
        pollfd p{writer_.poll_fd(), POLLOUT, 0};
        if (left <= 0 || ::poll(&p, 1, static_cast<int>(left)) == 0) break;
    }
}

void Sink::flush(Loop::Duration limit) {
    auto deadline = Loop::now() + limit;
    drain_until(deadline);
    if (!broken_ && chunks_.empty() && overflow_) {
        end_overflow();
        drain_until(deadline);  // a slow reader may not have room for the line yet
    }
    go_broken();
    broken_ = false;
}

}  // namespace dlrover::agent
