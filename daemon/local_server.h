// SPDX-License-Identifier: Apache-2.0
// The unix socket of the daemon: accepts, knows who asks (SO_PEERCRED), greets, frames, bounds everything.
#pragma once

#include <map>

#include "common/event_loop.h"
#include "daemon/local_port.h"
#include "proto/frame.h"

namespace dlrover::daemon {

class LocalServer final : public LocalPort {
  public:
    struct Limits {
        std::size_t connections = 4096;
        std::size_t connections_per_user = 1024;               ///< of one uid other than ours
        std::size_t frame_bytes = 128u << 10;                  ///< from others than root and ourselves
        std::size_t queue_bytes = 8u << 20;                    ///< to one connection; more: it is closed
        EventLoop::Time frame_time = std::chrono::seconds(5);  ///< for the greeting and for a begun frame
    };
    struct Identity {
        std::string node, cluster, version;
    };
    struct Handler {
        virtual ~Handler() = default;
        virtual void on_message(const Client &from, local::MessageT message) = 0;
        /// Also for connections that the server closed, but not from inside send() or close().
        virtual void on_closed(const Client &client) = 0;
    };

    /// Binds `path` (replacing a socket that nobody serves any more) with mode 0666.
    static Result<std::unique_ptr<LocalServer>> create(EventLoop &loop, const std::string &path,
                                                       Limits limits, Identity identity, Handler &handler);
    ~LocalServer() override;
    void send(ConnectionId to, local::MessageT message, std::vector<SharedFd> fds) override;
    void close(ConnectionId connection) override;
    void hold(ConnectionId connection) override;
    void release(ConnectionId connection) override;
    std::shared_ptr<LocalProcess> process(ConnectionId connection) override;

  private:
    struct Connection;
    LocalServer(EventLoop &loop, UniqueFd listener, std::string path, Limits limits, Identity identity,
                Handler &handler);
    void watch_listener();
    void on_accept();
    void on_accept_failed(int error);
    bool has_room(std::uint32_t uid) const;
    void on_readable(ConnectionId id);
    /// Handles what is whole, until somebody holds the connection; then reads on.
    void serve(ConnectionId id);
    void on_frame(Connection &connection, const proto::Bytes &payload);
    void greet(Connection &connection, const local::MessageT &message);
    void watch_frame_time(Connection &connection);
    void flush(Connection &connection);
    /// Ends it now, or when it is no longer held; the handler is told later.
    void end(ConnectionId id, const std::string &why);

    EventLoop &loop_;
    UniqueFd listener_;
    std::string path_;
    Limits limits_;
    Identity identity_;
    Handler &handler_;
    ConnectionId next_id_ = 1;
    std::map<ConnectionId, std::unique_ptr<Connection>> connections_;
    std::map<std::uint32_t, std::size_t> per_user_;
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
    EventLoop::Handle acceptable_;
    bool accept_failed_ = false;
};

}  // namespace dlrover::daemon
