// SPDX-License-Identifier: Apache-2.0
#include "agent/sink.h"

#include "agent/files.h"
#include "base/units.h"

namespace dlrover::agent {
namespace {

constexpr std::size_t chunk_bytes = 64 << 10;

}  // namespace

Sink::Sink(Loop &loop, int fd, std::string program, std::size_t limit_bytes)
    : writer_(loop, fd, [this] { on_writable(); }), program_(std::move(program)), limit_(limit_bytes) {}

Sink::~Sink() = default;

/// How much went out; sets broken_.
std::size_t Sink::write_some(std::string_view data, SpillFile *spill) {
    std::size_t sent = 0, n = 0;
    while (sent < data.size()) {
        auto outcome = writer_.write(data.substr(sent), n);
        if (outcome == NonblockingWriter::Outcome::broken) broken_ = true;
        if (outcome != NonblockingWriter::Outcome::wrote) break;
        sent += n;
        on_its_way_ = spill;
    }
    if (sent != 0) line_open_ = data[sent - 1] != '\n';
    return sent;
}

void Sink::write(std::string_view data, SpillFile *spill) {
    if (data.empty()) return;
    if (!broken_ && !overflow_ && chunks_.empty()) data.remove_prefix(write_some(data, spill));
    if (broken_) {
        go_broken();
        return spill_over(data, spill);
    }
    if (data.empty()) return;
    bool is_over = !writer_.is_file() && buffered_ + data.size() > limit_;  // else its writers wait
    if (overflow_ || is_over) {
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
    writer_.await_room(true);
}

void Sink::spill_over(std::string_view data, SpillFile *spill) {
    if (!spill || data.empty()) return;
    spill->append(data);
    spilled_ += data.size();
    spilled_to_ = spill;
}

/// True when nothing is left to send.
bool Sink::drain() {
    while (!chunks_.empty()) {
        std::string_view rest = std::string_view(chunks_.front().data).substr(offset_);
        std::size_t n = write_some(rest, chunks_.front().spill);
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
    if (chunks_.empty()) writer_.await_room(false);
}

void Sink::end_overflow() {
    overflow_ = false;
    std::string line = line_open_ ? "\n" : "";
    line += program_ + ": nobody read this stream for a while; " + format_size_bytes(spilled_);
    std::string path = spilled_to_ ? spilled_to_->path() : std::string();
    line += path.empty() ? " of output are lost" : " of output are in " + path;
    spilled_ = 0;
    line += '\n';
    std::string_view rest(line);
    rest.remove_prefix(write_some(rest, nullptr));
    if (!rest.empty()) keep(rest, nullptr);
}

/// The reader is gone for good: what is buffered goes to the files.
void Sink::go_broken() {
    writer_.await_room(false);
    spill_over(writer_.take_back(), on_its_way_);
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

/// A file that is slow is waited for, up to six times as long: its writers would have waited for it, too.
void Sink::drain_within(Loop::Duration limit) {
    auto deadline = Loop::now() + limit, end = deadline + 5 * limit;
    auto before = bytes_written();
    while (!broken_ && (!drain() || !writer_.idle()) && !broken_) {
        if (writer_.wait_for_room(deadline)) continue;
        auto now = std::exchange(before, bytes_written());
        if (!writer_.is_file() || now == before || deadline >= end) break;
        deadline = Loop::now() + limit;
    }
}

std::string Sink::flush(Loop::Duration limit) {
    drain_within(limit);
    if (!broken_ && chunks_.empty() && overflow_) {
        end_overflow();
        drain_within(limit);  // a slow reader may not have room for the line yet
    }
    go_broken();
    broken_ = false;
    if (!writer_.is_file() || spilled_ == 0 || !spilled_to_) return {};
    return format_size_bytes(std::exchange(spilled_, 0)) + " of output are in " + spilled_to_->path();
}

}  // namespace dlrover::agent
