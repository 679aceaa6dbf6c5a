// SPDX-License-Identifier: Apache-2.0
#include "agent/stream.h"

#include <fcntl.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/units.h"

namespace dlrover::agent {
namespace {

constexpr Loop::Duration longest_hold{200}, between_looks{10}, told_after{10000};
constexpr int reads_at_a_time = 16;
constexpr int wanted_pipe_bytes = 1 << 20;

}  // namespace

Stream::Stream(Loop &loop, UniqueFd pipe, StreamPlan plan)
    : loop_(loop), pipe_(std::move(pipe)), plan_(std::move(plan)) {
    ::fcntl(pipe_.get(), F_SETFL, O_NONBLOCK);
    ::fcntl(pipe_.get(), F_SETPIPE_SZ, wanted_pipe_bytes);  // a refusal leaves the default
    listen();
}

void Stream::listen() {
    if (!loop_.watch(pipe_.get(), EPOLLIN, [this](std::uint32_t) { on_readable(); }).ok()) close();
}

void Stream::on_readable() {
    for (int i = 0; i < reads_at_a_time; ++i) {
        if (is_full()) return pause();
        if (!read_some()) return;
    }
}

bool Stream::is_full() const {
    return (plan_.copy && plan_.copy->is_full()) || (plan_.sink && plan_.sink->is_full()) ||
           (plan_.spill && plan_.spill->is_full());
}

void Stream::pause() {
    loop_.forget(pipe_.get());
    paused_at_ = Loop::now();
    pause_timer_ = loop_.after(between_looks, [this] { look_again(); });
}

void Stream::look_again() {
    pause_timer_ = 0;
    if (!pipe_) return;
    if (!is_full()) return listen();
    if (plan_.said_on && Loop::now() - paused_at_ >= told_after && !std::exchange(told_, true))
        plan_.said_on->say(plan_.name + " waits: for " + format_duration(told_after) +
                           " a file that its output goes to has taken less than is written; see what its "
                           "file system does");
    pause_timer_ = loop_.after(between_looks, [this] { look_again(); });
}

Stream::~Stream() {
    loop_.cancel(partial_timer_);
    loop_.cancel(pause_timer_);
    close();
}

void Stream::close() {
    if (!pipe_) return;
    loop_.forget(pipe_.get());
    pipe_.reset();
}

bool Stream::read_some() {
    static std::array<char, 64 << 10> buffer;
    if (!pipe_) return false;
    ssize_t n = ::read(pipe_.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) return true;
    if (n < 0 && errno == EAGAIN) return false;
    if (n <= 0) {
        close();
        emit_partial();
        return false;
    }
    take({buffer.data(), static_cast<std::size_t>(n)});
    return true;
}

void Stream::drain() {
    // A process that left the worker's tree behind may still write: one pipe's content is enough.
    for (int i = 0; i < 2 * wanted_pipe_bytes / 4096 && read_some(); ++i) continue;
}

void Stream::finish() {
    drain();
    emit_partial();
}

void Stream::take(std::string_view data) {
    tail_ += data;
    if (tail_.size() > 2 * tail_bytes) tail_.erase(0, tail_.size() - tail_bytes);
    if (plan_.copy) plan_.copy->write(data);
    if (!plan_.sink) return;
    if (!plan_.by_lines) return plan_.sink->write(data, plan_.spill);
    partial_ += data;
    std::size_t end = partial_.find_last_of("\n\r");
    if (end != std::string::npos) {
        emit(std::string_view(partial_).substr(0, end + 1));
        partial_.erase(0, end + 1);
        loop_.cancel(partial_timer_);
    }
    if (partial_.size() > longest_line_bytes) emit_partial();
    if (!partial_.empty() && partial_timer_ == 0)
        partial_timer_ = loop_.after(longest_hold, [this] { emit_partial(); });
}

void Stream::emit(std::string_view lines) {
    if (plan_.prefix.empty()) return plan_.sink->write(lines, plan_.spill);
    std::string out;
    while (!lines.empty()) {
        std::size_t n = std::min(lines.find('\n'), lines.size() - 1) + 1;
        out += plan_.prefix;
        out += lines.substr(0, n);
        lines.remove_prefix(n);
    }
    plan_.sink->write(out, plan_.spill);
}

void Stream::emit_partial() {
    loop_.cancel(partial_timer_);
    if (partial_.empty() || !plan_.sink) return;
    if (!plan_.prefix.empty()) partial_ += '\n';
    emit(partial_);
    partial_.clear();
}

std::string_view Stream::tail() const {
    std::string_view all(tail_);
    return all.size() > tail_bytes ? all.substr(all.size() - tail_bytes) : all;
}

}  // namespace dlrover::agent
