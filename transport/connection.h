// SPDX-License-Identifier: Apache-2.0
// One connected socket that carries frames: bounded queue out, deadline on half frames in. Knows nothing of
// what the frames mean.
#pragma once

#include <deque>
#include <functional>
#include <memory>

#include "base/unique_fd.h"
#include "common/event_loop.h"
#include "proto/frame.h"

namespace dlrover::transport {

struct ConnectionLimits {
    std::size_t queue_bytes = 16u << 20;
    EventLoop::Time frame_timeout = std::chrono::seconds(5);
};

/// Thread: the loop's. on_end comes once, never from inside send() or end(); after it, and after end(),
/// nothing comes.
class Connection {
  public:
    struct Callbacks {
        std::function<void(proto::Bytes payload)> on_payload;
        std::function<void(Status why)> on_end;
    };

    Connection(EventLoop &loop, UniqueFd socket, ConnectionLimits limits, Callbacks callbacks);
    ~Connection();

    /// Queues one frame. When the queue overflows the connection ends (resource_exhausted).
    void send(proto::Bytes payload);
    /// Half of what may wait does: what can be sent again later is better not sent now, since more ends it.
    bool is_busy() const { return queued_bytes_ > limits_.queue_bytes / 2; }
    /// While paused, payloads wait and the socket is not read: the peer feels it.
    void pause();
    void resume();
    /// What can be sent without waiting is sent; then closed. No callback.
    void end();
    bool ended() const { return ended_; }
    EventLoop::Time last_sent() const { return last_sent_; }
    EventLoop::Time last_received() const { return last_received_; }
    std::uint64_t bytes_received() const { return bytes_received_; }

  private:
    void on_readable();
    void deliver();
    void watch_half_frame(bool progressed);
    void flush();
    void fail(Status why);

    EventLoop &loop_;
    UniqueFd socket_;
    ConnectionLimits limits_;
    Callbacks callbacks_;
    proto::FrameReader reader_;
    std::deque<proto::Bytes> queue_;
    std::size_t queued_bytes_ = 0, front_sent_ = 0;
    std::uint64_t bytes_received_ = 0;
    EventLoop::Time last_sent_, last_received_;
    bool paused_ = false, ended_ = false;
    EventLoop::Handle readable_, writable_, half_frame_;
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dlrover::transport
