// SPDX-License-Identifier: Apache-2.0
// From a text to a connected socket: resolves, tries each address in turn.
#pragma once

#include <functional>
#include <memory>

#include "common/event_loop.h"
#include "common/worker_thread.h"
#include "transport/sockets.h"

namespace dlrover::transport {

struct DialOptions {
    std::uint16_t port = 0;
    std::string source;  ///< numeric address of this node to come from; empty: any
    bool privileged = true;
    EventLoop::Time timeout = std::chrono::seconds(3);
};

struct Dialed {
    UniqueFd socket;
    SocketAddress remote;
};

/// Thread: the loop's. The answer comes once, never from inside begin(); dropping the dialer cancels it.
class Dialer {
  public:
    using Answer = std::function<void(Result<Dialed>)>;
    static std::unique_ptr<Dialer> begin(EventLoop &loop, WorkerThread &resolver, const std::string &address,
                                         DialOptions options, Answer answer);
    ~Dialer() { *alive_ = false; }

  private:
    Dialer(EventLoop &loop, DialOptions options, Answer answer);
    void on_resolved(Result<std::vector<SocketAddress>> addresses);
    void try_next();
    void on_writable();
    void finish(Result<Dialed> result);

    EventLoop &loop_;
    DialOptions options_;
    Answer answer_;
    std::vector<SocketAddress> addresses_;
    std::size_t next_ = 0;
    Status last_failure_;
    UniqueFd socket_;
    EventLoop::Handle writable_, timer_;
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dlrover::transport
