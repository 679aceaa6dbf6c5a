// SPDX-License-Identifier: Apache-2.0
#include "daemon/local_server.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstring>
#include <deque>

#include "common/log.h"
#include "daemon/peer_process.h"

namespace dlrover::daemon {
namespace {

constexpr EventLoop::Time accept_again = std::chrono::milliseconds(100);

struct Outgoing {
    proto::Bytes frame;
    std::size_t sent = 0;
    std::vector<SharedFd> fds;
};

Result<sockaddr_un> address_of(const std::string &path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.empty() || path.size() >= sizeof address.sun_path)
        return Status(Code::invalid_argument, "socket path empty or too long: " + path);
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    return address;
}

/// A socket file without a listener is what a killed daemon leaves.
Status remove_dead_socket(const std::string &path, const sockaddr_un &address) {
    struct stat st {};
    if (::lstat(path.c_str(), &st) != 0) return {};
    if (!S_ISSOCK(st.st_mode)) return Status(Code::already_exists, path + " is there and not a socket");
    UniqueFd probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (::connect(probe.get(), reinterpret_cast<const sockaddr *>(&address), sizeof address) == 0 ||
        errno == EAGAIN)
        return Status(Code::already_exists, "another daemon serves " + path);
    return ::unlink(path.c_str()) == 0 ? Status() : Status::from_errno("unlink " + path);
}

Result<UniqueFd> listen_on(const std::string &path) {
    auto address = address_of(path);
    if (!address) return address.take_status();
    DLROVER_TRY(remove_dead_socket(path, *address));
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) return Status::from_errno("socket");
    mode_t old = ::umask(0111);
    int bound = ::bind(fd.get(), reinterpret_cast<sockaddr *>(&*address), sizeof *address);
    ::umask(old);
    if (bound != 0) return Status::from_errno("bind " + path);
    if (::listen(fd.get(), 1024) != 0) return Status::from_errno("listen on " + path);
    return fd;
}

}  // namespace

struct LocalServer::Connection {
    Connection(Client c, UniqueFd s, std::size_t frame_limit)
        : client(c), socket(std::move(s)), reader(frame_limit) {}
    Client client;
    UniqueFd socket;
    proto::FrameReader reader;
    std::deque<Outgoing> queue;
    std::size_t queued_bytes = 0, queued_fds = 0;
    bool in_turn = false;  ///< it is going to be served
    bool greeted = false, closing = false;
    bool held = false, over = false;  ///< over: to be ended when it is released
    EventLoop::Handle readable, writable, frame_timer;
};

Result<std::unique_ptr<LocalServer>> LocalServer::create(EventLoop &loop, const std::string &path,
                                                         Limits limits, Identity identity, Handler &handler) {
    auto listener = listen_on(path);
    if (!listener) return listener.take_status();
    return std::unique_ptr<LocalServer>(
        new LocalServer(loop, std::move(*listener), path, limits, std::move(identity), handler));
}

LocalServer::LocalServer(EventLoop &loop, UniqueFd listener, std::string path, Limits limits,
                         Identity identity, Handler &handler)
    : loop_(loop),
      listener_(std::move(listener)),
      path_(std::move(path)),
      limits_(limits),
      identity_(std::move(identity)),
      handler_(handler),
      closer_(loop) {
    watch_listener();
}

LocalServer::~LocalServer() {
    *alive_ = false;
    ::unlink(path_.c_str());
}

bool LocalServer::has_room(std::uint32_t uid) const {
    if (uid == ::geteuid()) return true;
    auto mine = users_.find(uid);
    return connections_.size() < limits_.connections &&
           (mine == users_.end() || mine->second.connections < limits_.connections_per_user);
}

void LocalServer::watch_listener() {
    acceptable_ = loop_.when_readable(listener_.get(), [this] { on_accept(); });
}

/// Out of descriptors or memory: the connection waits in the backlog, and so must we, for the listener stays
/// readable.
void LocalServer::on_accept_failed(int error) {
    if (error == EMFILE || error == ENFILE || error == ENOMEM || error == ENOBUFS)
        accept_later(std::strerror(error));
}

void LocalServer::accept_later(const std::string &why) {
    if (!accept_failed_) log::error("no connection can be accepted for now: " + why);
    accept_failed_ = true;
    acceptable_ = loop_.after(accept_again, [this] { watch_listener(); });
}

void LocalServer::on_accept() {
    // Whose they are is only known of those that are accepted: one who means harm keeps others out.
    if (closer_.waiting() >= limits_.closing)
        return accept_later(std::to_string(limits_.closing) +
                            " connections are being closed in which users have left descriptors, most of "
                            "them of uid " +
                            std::to_string(closer_.most().value_or(0)));
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return on_accept_failed(errno);
    accept_failed_ = false;
    ucred who{};
    socklen_t size = sizeof who;
    if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &who, &size) != 0) return;
    if (!has_room(who.uid)) {
        log::debug("a connection of uid " + std::to_string(who.uid) + " was refused: too many");
        return closer_.close(who.uid, std::move(socket), [] {});
    }
    bool trusted = who.uid == 0 || who.uid == ::geteuid();
    ConnectionId id = next_id_++;
    Client client{id, who.uid, who.gid, who.pid, local::Role::None};
    auto connection = std::make_unique<Connection>(client, std::move(socket),
                                                   trusted ? proto::max_frame_bytes : limits_.frame_bytes);
    ++users_[who.uid].connections;
    connections_.emplace(id, std::move(connection));
    serve(id);
}

void LocalServer::on_readable(ConnectionId id) {
    auto it = connections_.find(id);
    if (it == connections_.end()) return;
    Connection &connection = *it->second;
    std::uint8_t buffer[65536];
    auto received = proto::receive_no_fds(connection.socket.get(), buffer);
    if (!received) {
        if (received.status().code() != Code::timeout) end(id, received.status().message());
        return;
    }
    if (*received == 0) return end(id, "");
    Status status = connection.reader.feed({buffer, *received});
    serve(id);
    if (!status.ok()) end(id, status.message());
}

void LocalServer::serve(ConnectionId id) {
    for (;;) {
        auto it = connections_.find(id);
        if (it == connections_.end() || it->second->closing || it->second->held || it->second->in_turn)
            return;
        Connection &connection = *it->second;
        if (auto payload = connection.reader.next()) {
            // The next one's time begins anew: a client with much to say is in the midst of one each time.
            if (connection.greeted) connection.frame_timer.reset();
            if (connection.reader.has_next()) serve_later(id);
            on_frame(connection, *payload);
            continue;
        }
        if (!connection.readable)
            connection.readable =
                loop_.when_readable(connection.socket.get(), [this, id] { on_readable(id); });
        return watch_frame_time(connection);
    }
}

void LocalServer::serve_later(ConnectionId id) {
    Connection &connection = *connections_.at(id);
    connection.in_turn = true;
    connection.readable.reset();
    loop_.post([this, alive = alive_, id] {
        if (!*alive) return;
        auto it = connections_.find(id);
        if (it == connections_.end()) return;
        it->second->in_turn = false;
        serve(id);
    });
}

void LocalServer::hold(ConnectionId id) {
    auto it = connections_.find(id);
    if (it == connections_.end()) return;
    it->second->held = true;
    it->second->readable.reset();
    if (!it->second->closing) it->second->frame_timer.reset();
}

void LocalServer::release(ConnectionId id) {
    auto it = connections_.find(id);
    if (it == connections_.end()) return;
    it->second->held = false;
    if (it->second->over) return end(id, "");
    serve(id);
}

std::shared_ptr<LocalProcess> LocalServer::process(ConnectionId id) {
    auto it = connections_.find(id);
    if (it == connections_.end()) return nullptr;
    const Client &client = it->second->client;
    return PeerProcess::of(it->second->socket.get(), client.pid, client.uid);
}

void LocalServer::on_frame(Connection &connection, const proto::Bytes &payload) {
    auto message = proto::decode_local(payload);
    if (!message) {
        fail(connection.client.id, 0, local::Refusal::BadMessage, message.status().message());
        return close(connection.client.id);
    }
    if (connection.greeted && message->body.type != local::Body::Hello)
        return handler_.on_message(connection.client, std::move(*message));
    greet(connection, *message);
}

void LocalServer::greet(Connection &connection, const local::MessageT &message) {
    const auto *hello = message.body.AsHello();
    ConnectionId id = connection.client.id;
    if (!hello || connection.greeted || hello->role == local::Role::None) {
        fail(id, message.id, local::Refusal::BadMessage, "a connection begins with one greeting");
        return close(id);
    }
    if (hello->protocol_min > proto::local_protocol_version ||
        hello->protocol_max < proto::local_protocol_version) {
        fail(id, message.id, local::Refusal::Unsupported,
             "this daemon (" + identity_.version + ") speaks version 1 of the local protocol only");
        return close(id);
    }
    connection.greeted = true;
    connection.client.role = hello->role;
    local::HelloReplyT reply;
    reply.protocol = proto::local_protocol_version;
    reply.node = identity_.node;
    reply.cluster = identity_.cluster;
    reply.version = identity_.version;
    answer(id, message.id, std::move(reply));
}

void LocalServer::watch_frame_time(Connection &connection) {
    bool wanted = !connection.greeted || connection.reader.mid_frame();
    if (!wanted) {
        connection.frame_timer.reset();
    } else if (!connection.frame_timer) {
        connection.frame_timer = loop_.after(limits_.frame_time, [this, id = connection.client.id] {
            end(id, "a message was not whole in time");
        });
    }
}

void LocalServer::send(ConnectionId to, local::MessageT message, std::vector<SharedFd> fds) {
    auto it = connections_.find(to);
    if (it == connections_.end() || it->second->closing) return;
    Connection &connection = *it->second;
    proto::Bytes payload = proto::encode_local(message);
    if (payload.size() > proto::max_frame_bytes || fds.size() > proto::max_frame_fds) {
        log::error("an answer is too large to be sent");
        return end(to, "an answer was too large");
    }
    add_queued_fds(connection, fds.size(), 0);
    Outgoing out{proto::make_frame(payload), 0, std::move(fds)};
    connection.queued_bytes += out.frame.size();
    connection.queue.push_back(std::move(out));
    if (const char *why = too_much(connection)) return end(to, why);
    if (connection.queue.size() == 1) flush(connection);
}

const char *LocalServer::too_much(const Connection &connection) const {
    if (connection.queued_bytes > limits_.queue_bytes || connection.queued_fds > limits_.queue_fds)
        return "it does not read its messages";
    std::uint32_t uid = connection.client.uid;
    bool others = uid != ::geteuid() && users_.at(uid).queued_fds > limits_.queue_fds_per_user;
    return others ? "its user does not read his messages" : nullptr;
}

void LocalServer::add_queued_fds(Connection &connection, std::size_t more, std::size_t less) {
    std::size_t &of_user = users_.at(connection.client.uid).queued_fds;
    connection.queued_fds = connection.queued_fds + more - less;
    of_user = of_user + more - less;
}

void LocalServer::flush(Connection &connection) {
    ConnectionId id = connection.client.id;
    while (!connection.queue.empty()) {
        Outgoing &out = connection.queue.front();
        std::vector<int> fds;
        for (const auto &fd : out.fds) fds.push_back(fd->get());
        auto sent = proto::send_with_fds(connection.socket.get(),
                                         std::span<const std::uint8_t>(out.frame).subspan(out.sent), fds);
        if (!sent) {
            Code why = sent.status().code();
            if (why == Code::unavailable && !connection.held && !connection.closing)
                return drop_answers(connection);
            if (why != Code::timeout) return end(id, "");
            if (!connection.writable)
                connection.writable = loop_.when_writable(connection.socket.get(), [this, id] {
                    auto it = connections_.find(id);
                    if (it != connections_.end()) flush(*it->second);
                });
            return;
        }
        add_queued_fds(connection, 0, out.fds.size());
        out.fds.clear();
        out.sent += *sent;
        if (out.sent < out.frame.size()) continue;
        connection.queued_bytes -= out.frame.size();
        connection.queue.pop_front();
    }
    connection.writable.reset();
    if (connection.closing) end(id, "");
}

/// Who is gone may have asked for something before (LocalClient::ask_once); the end comes behind it.
void LocalServer::drop_answers(Connection &connection) {
    add_queued_fds(connection, 0, connection.queued_fds);
    connection.queued_bytes = 0;
    connection.queue.clear();
    connection.writable.reset();
}

void LocalServer::close(ConnectionId id) {
    auto it = connections_.find(id);
    if (it == connections_.end()) return;
    it->second->closing = true;
    it->second->readable.reset();
    if (it->second->queue.empty()) return end(id, "");
    it->second->frame_timer.reset();
    it->second->frame_timer = loop_.after(limits_.frame_time, [this, id] { end(id, ""); });
}

void LocalServer::end(ConnectionId id, const std::string &why) {
    auto it = connections_.find(id);
    if (it == connections_.end()) return;
    Client client = it->second->client;
    if (!why.empty()) log::debug("a connection of pid " + std::to_string(client.pid) + " was closed: " + why);
    if (it->second->held) {
        it->second->over = it->second->closing = true;
        it->second->writable.reset();
        return;
    }
    add_queued_fds(*it->second, 0, it->second->queued_fds);
    // Later: the connection may be in use further up the stack, and the handler must not be entered twice.
    std::shared_ptr<Connection> dead = std::move(it->second);
    connections_.erase(it);
    dead->readable.reset();
    dead->writable.reset();
    dead->frame_timer.reset();
    loop_.post([this, alive = alive_, dead] {
        if (!*alive) return;
        std::uint32_t uid = dead->client.uid;
        closer_.close(uid, std::move(dead->socket), [this, alive, uid] {
            if (*alive) forget(uid);
        });
        if (dead->greeted) handler_.on_closed(dead->client);
    });
}

void LocalServer::forget(std::uint32_t uid) {
    auto user = users_.find(uid);
    if (--user->second.connections == 0) users_.erase(user);
}

}  // namespace dlrover::daemon
