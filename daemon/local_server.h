// SPDX-License-Identifier: Apache-2.0
// The unix socket of the daemon: accepts, knows who asks (SO_PEERCRED), greets, frames, bounds everything.
#pragma once

#include <map>

#include "common/event_loop.h"
#include "daemon/local_port.h"
#include "daemon/slow_close.h"
#include "proto/frame.h"

namespace dlrover::daemon {

class LocalServer final : public LocalPort {
  public:
    struct Limits {
        std::size_t connections = 4096;
        std::size_t connections_per_user = 1024;  ///< of one uid other than ours
        std::size_t frame_bytes = 128u << 10;     ///< from others than root and ourselves
        std::size_t queue_bytes = 8u << 20;       ///< to one connection; more: it is closed
        std::size_t queue_fds = 1024;             ///< descriptors, the same
        std::size_t queue_fds_per_user = 16384;   ///< of one uid other than ours
        /// More than so many with descriptors of users in them: nobody is accepted. The kernel lets a user
        /// have as many on their way as he may have files open.
        std::size_t closing = 4096;
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
    void accept_later(const std::string &why);
    bool has_room(std::uint32_t uid) const;
    void on_readable(ConnectionId id);
    /// Handles one message that is whole, and lets others have their turn before the next; where there is
    /// none it reads on. Not while somebody holds the connection.
    void serve(ConnectionId id);
    void serve_later(ConnectionId id);
    void on_frame(Connection &connection, const proto::Bytes &payload);
    void greet(Connection &connection, const local::MessageT &message);
    void watch_frame_time(Connection &connection);
    /// Why no more can wait for it; null: it can.
    const char *too_much(const Connection &connection) const;
    void add_queued_fds(Connection &connection, std::size_t more, std::size_t less);
    void flush(Connection &connection);
    void drop_answers(Connection &connection);
    void forget(std::uint32_t uid);
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
    struct User {
        std::size_t connections = 0;  ///< those that are being closed, too
        std::size_t queued_fds = 0;
    };
    std::map<std::uint32_t, User> users_;
    SlowCloser closer_;
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
    EventLoop::Handle acceptable_;
    bool accept_failed_ = false;
};

}  // namespace dlrover::daemon
