// SPDX-License-Identifier: Apache-2.0
#include "agent/link.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>

#include "proto/local_client.h"

namespace dlrover::agent {
namespace {

using proto::local::Body;

constexpr Loop::Duration retry_soon{50}, retry_later{250}, greeting_limit{1000};
constexpr unsigned soon_attempts = 200;  // 10 s
constexpr std::size_t most_queued_bytes = 4 << 20;
constexpr std::uint32_t hello_id = 1, agent_hello_id = 2;

}  // namespace

Link::Link(Loop &loop, std::string socket_path, Events events)
    : loop_(loop), path_(std::move(socket_path)), events_(std::move(events)) {}

Link::~Link() {
    close();
}

void Link::open() {
    if (state_ == State::closed) try_connect();
}

void Link::close() {
    loop_.cancel(timer_);
    if (socket_) loop_.forget(socket_.get());
    socket_.reset();
    reader_ = {};
    fds_.clear();
    queued_.clear();
    state_ = State::closed;
}

Status Link::connect() {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path_.size() >= sizeof address.sun_path)
        return Status(Code::invalid_argument, "the socket's path is too long: " + path_);
    std::memcpy(address.sun_path, path_.c_str(), path_.size() + 1);
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) return Status::from_errno("socket");
    if (::connect(fd.get(), reinterpret_cast<sockaddr *>(&address), sizeof address) != 0)
        return Status(Code::unavailable, "no daemon answers at " + path_ + " (" + std::strerror(errno) + ")");
    DLROVER_TRY(loop_.watch(fd.get(), EPOLLIN, [this](std::uint32_t events) { on_events(events); }));
    socket_ = std::move(fd);
    return {};
}

void Link::try_connect() {
    timer_ = 0;
    if (Status s = connect(); !s.ok()) return retry(std::move(s));
    state_ = State::greeting;
    timer_ = loop_.after(greeting_limit, [this] {
        timer_ = 0;
        retry(Status(Code::timeout, "the daemon at " + path_ + " does not answer"));
    });
    proto::local::HelloT hello;
    hello.role = proto::local::Role::Agent;
    send_message(proto::make_local(hello_id, hello));
}

void Link::retry(Status why) {
    close();
    state_ = State::waiting;
    ++attempts_;
    timer_ = loop_.after(attempts_ < soon_attempts ? retry_soon : retry_later, [this] { try_connect(); });
    if (why.message() == last_reason_) return;
    last_reason_ = why.message();
    events_.down(why);
}

void Link::send_message(const proto::local::MessageT &message) {
    proto::Bytes frame = proto::make_frame(proto::encode_local(message));
    queued_.append(reinterpret_cast<const char *>(frame.data()), frame.size());
    // A failure shows as an event on the socket: no callback from within send.
    if (queued_.size() > most_queued_bytes)
        ::shutdown(socket_.get(), SHUT_RDWR);  // a daemon that reads nothing: all is told again
    else if (Status s = write_queued(); s.ok() && !queued_.empty())
        loop_.change(socket_.get(), EPOLLIN | EPOLLOUT);
}

Status Link::write_queued() {
    while (!queued_.empty()) {
        ssize_t n = ::send(socket_.get(), queued_.data(), queued_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) break;
        if (n < 0) return Status::from_errno("send to the daemon");
        queued_.erase(0, static_cast<std::size_t>(n));
    }
    if (queued_.size() > most_queued_bytes)
        return Status(Code::timeout, "the daemon does not take our messages");
    return {};
}

void Link::on_events(std::uint32_t events) {
    if (events & EPOLLOUT) {
        if (Status s = write_queued(); !s.ok()) return retry(std::move(s));
        if (queued_.empty()) loop_.change(socket_.get(), EPOLLIN);
    }
    if (!(events & ~static_cast<std::uint32_t>(EPOLLOUT))) return;
    if (Status s = read_all(); !s.ok()) retry(std::move(s));
}

/// All that is there: renewals of the lease may have waited behind one another.
Status Link::read_all() {
    std::uint8_t buffer[65536];
    while (socket_) {
        auto received = proto::receive_with_fds(socket_.get(), buffer);
        if (received.status().code() == Code::timeout) return {};
        if (!received) return received.take_status();
        if (received->bytes == 0) return Status(Code::unavailable, "the daemon closed the connection");
        for (auto &fd : received->fds) fds_.push_back(std::move(fd));
        DLROVER_TRY(reader_.feed({buffer, received->bytes}));
        DLROVER_TRY(take_messages());
    }
    return {};
}

Status Link::take_messages() {
    while (socket_) {  // a message may end the link
        auto payload = reader_.next();
        if (!payload) break;
        auto message = proto::decode_local(*payload);
        if (!message) return message.take_status();
        proto::LocalMessage whole{std::move(*message), {}};
        for (std::size_t n = proto::fds_of(whole.message); n > 0; --n) {
            if (fds_.empty()) return Status(Code::corrupt, "a descriptor of the daemon's is missing");
            whole.fds.push_back(std::move(fds_.front()));
            fds_.pop_front();
        }
        DLROVER_TRY(on_message(std::move(whole)));
    }
    return {};
}

Status Link::on_message(proto::LocalMessage whole) {
    const proto::local::MessageT &message = whole.message;
    if (auto *failure = message.body.AsFailure()) {
        // A refused one-way message is told once; a refused greeting ends the attempt.
        Status why = proto::to_status(*failure);
        if (state_ != State::up) return why;
        events_.down(why);
        return {};
    }
    // What is pushed before we are part of the group is for nobody.
    if (state_ != State::up) return message.id == 0 ? Status() : on_reply(message);
    if (message.id == 0) events_.message(std::move(whole));
    return {};
}

Status Link::on_reply(const proto::local::MessageT &message) {
    if (state_ == State::greeting && message.id == hello_id && message.body.type == Body::HelloReply) {
        node_ = message.body.AsHelloReply()->node;
        state_ = State::joining;
        send_message(proto::make_local(agent_hello_id, events_.greeting()));
        return {};
    }
    if (state_ == State::joining && message.id == agent_hello_id && message.body.type == Body::AgentWelcome) {
        loop_.cancel(timer_);
        state_ = State::up;
        last_reason_.clear();
        attempts_ = 0;
        events_.up(*message.body.AsAgentWelcome());
        return {};
    }
    return Status(Code::corrupt, "the daemon did not greet as it should");
}

void Link::flush(Loop::Duration limit) {
    auto deadline = Loop::now() + limit;
    while (socket_ && !queued_.empty() && write_queued().ok() && !queued_.empty()) {
        auto left = std::chrono::ceil<Loop::Duration>(deadline - Loop::now()).count();
        pollfd p{socket_.get(), POLLOUT, 0};
        if (left <= 0 || ::poll(&p, 1, static_cast<int>(left)) == 0) break;
    }
}

}  // namespace dlrover::agent
