// SPDX-License-Identifier: Apache-2.0
#include "transport/connection.h"

#include <sys/socket.h>

namespace dlrover::transport {
namespace {

constexpr std::size_t read_bytes = 64u << 10;
/// A busy peer must not keep the loop from the others.
constexpr int reads_in_a_row = 16;

}  // namespace

Connection::Connection(EventLoop &loop, UniqueFd socket, ConnectionLimits limits, Callbacks callbacks)
    : loop_(loop),
      socket_(std::move(socket)),
      limits_(limits),
      callbacks_(std::move(callbacks)),
      last_sent_(loop.now()),
      last_received_(loop.now()) {
    readable_ = loop_.when_readable(socket_.get(), [this] { on_readable(); });
}

Connection::~Connection() {
    *alive_ = false;
}

void Connection::send(proto::Bytes payload) {
    if (ended_) return;
    proto::Bytes frame = proto::make_frame(payload);
    if (queued_bytes_ + frame.size() > limits_.queue_bytes) {
        fail(Status(Code::resource_exhausted,
                    "the peer does not take its messages: " + std::to_string(queued_bytes_) + " bytes wait"));
        return;
    }
    queued_bytes_ += frame.size();
    queue_.push_back(std::move(frame));
    flush();
}

void Connection::flush() {
    while (!queue_.empty() && !ended_) {
        const proto::Bytes &frame = queue_.front();
        ssize_t n = ::send(socket_.get(), frame.data() + front_sent_, frame.size() - front_sent_,
                           MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) break;
        if (n < 0) return fail(Status::from_errno("send"));
        last_sent_ = loop_.now();
        front_sent_ += static_cast<std::size_t>(n);
        queued_bytes_ -= static_cast<std::size_t>(n);
        if (front_sent_ < frame.size()) continue;
        queue_.pop_front();
        front_sent_ = 0;
    }
    if (queue_.empty() || ended_)
        writable_.reset();
    else if (!writable_)
        writable_ = loop_.when_writable(socket_.get(), [this] { flush(); });
}

void Connection::on_readable() {
    auto alive = alive_;
    std::uint8_t buffer[read_bytes];
    for (int i = 0; i < reads_in_a_row && !ended_ && !paused_; ++i) {
        ssize_t n = ::recv(socket_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n < 0) return fail(Status::from_errno("receive"));
        if (n == 0) return fail(Status(Code::unavailable, "the peer closed the connection"));
        last_received_ = loop_.now();
        bytes_received_ += static_cast<std::uint64_t>(n);
        if (Status s = reader_.feed({buffer, static_cast<std::size_t>(n)}); !s.ok())
            return fail(std::move(s));
        deliver();
        if (!*alive) return;
    }
}

void Connection::deliver() {
    auto alive = alive_;
    bool progressed = false;
    while (!ended_ && !paused_) {
        auto payload = reader_.next();
        if (!payload) break;
        progressed = true;
        callbacks_.on_payload(std::move(*payload));
        if (!*alive) return;
    }
    if (!ended_) watch_half_frame(progressed);
}

void Connection::watch_half_frame(bool progressed) {
    if (!reader_.mid_frame() || progressed || paused_) half_frame_.reset();
    if (!reader_.mid_frame() || half_frame_ || paused_) return;
    half_frame_ = loop_.after(limits_.frame_timeout, [this] {
        fail(Status(Code::timeout, "the peer stopped in the middle of a frame"));
    });
}

void Connection::pause() {
    paused_ = true;
    readable_.reset();
    half_frame_.reset();
}

void Connection::resume() {
    if (!paused_ || ended_) return;
    paused_ = false;
    readable_ = loop_.when_readable(socket_.get(), [this] { on_readable(); });
    deliver();
}

void Connection::fail(Status why) {
    if (ended_) return;
    end();
    loop_.post([this, alive = alive_, why = std::make_shared<Status>(std::move(why))] {
        if (*alive) callbacks_.on_end(std::move(*why));
    });
}

void Connection::end() {
    if (ended_) return;
    ended_ = true;
    readable_.reset();
    writable_.reset();
    half_frame_.reset();
    queue_.clear();
    queued_bytes_ = 0;
    socket_.reset();
}

}  // namespace dlrover::transport
