// SPDX-License-Identifier: Apache-2.0
#include "proto/local_client.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstring>

namespace dlrover::proto {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;
constexpr std::size_t max_kept_pushes = 1024;

Status wait_for(int fd, short events, SteadyTime deadline) {
    for (;;) {
        auto left =
            std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now()).count();
        pollfd p{fd, events, 0};
        int n = ::poll(&p, 1, static_cast<int>(std::clamp<long long>(left, 0, 1 << 30)));
        if (n > 0) return {};
        if (n == 0) return Status(Code::timeout, "the daemon did not answer in time");
        if (errno != EINTR) return Status::from_errno("poll");
    }
}

/// Never 0: what is there already is taken.
LocalClient::Timeout time_left(SteadyTime deadline) {
    auto left = std::chrono::ceil<LocalClient::Timeout>(deadline - std::chrono::steady_clock::now());
    return std::max(left, LocalClient::Timeout(1));
}

local::HelloT greeting(local::Role role) {
    local::HelloT hello;
    hello.role = role;
    return hello;
}

Result<UniqueFd> open_socket(const std::string &path, SteadyTime deadline) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof address.sun_path)
        return Status(Code::invalid_argument, "socket path too long: " + path);
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) return Status::from_errno("socket");
    while (::connect(fd.get(), reinterpret_cast<sockaddr *>(&address), sizeof address) != 0) {
        // A full backlog shows as EAGAIN; the socket does not become writable by waiting.
        if (errno != EAGAIN && errno != EINTR) {
            int err = errno;
            Code code = err == ENOENT || err == ECONNREFUSED ? Code::unavailable : Code::system;
            return Status(code, "no daemon at " + path + " (" + std::strerror(err) + ")");
        }
        if (std::chrono::steady_clock::now() >= deadline)
            return Status(Code::timeout, "the daemon does not accept connections");
        ::poll(nullptr, 0, 5);
    }
    return fd;
}

}  // namespace

std::size_t fds_of(const local::MessageT &message) {
    auto count = [](const auto &segments) {
        return static_cast<std::size_t>(
            std::count_if(segments.begin(), segments.end(), [](const auto &s) { return s && s->fd; }));
    };
    if (auto *granted = message.body.AsSlotGranted()) return count(granted->segments);
    if (auto *prepared = message.body.AsPrepared()) {
        std::size_t all = 0;
        for (const auto &slot : prepared->slots)
            if (slot) all += count(slot->segments);
        return all;
    }
    if (auto *plan = message.body.AsRestorePlan()) return count(plan->segments);
    if (auto *object = message.body.AsStoreObject()) return count(object->segments);
    if (auto *object = message.body.AsExpectObject()) {
        std::size_t all = count(object->segments);
        for (const auto &own : object->own)
            if (own) all += count(own->segments);
        return all;
    }
    if (auto *object = message.body.AsSendObject()) return count(object->segments);
    if (auto *object = message.body.AsVerifyObject()) return count(object->segments);
    if (auto *measure = message.body.AsMeasureNode()) return count(measure->segments);
    if (auto *part = message.body.AsFoldObject()) return count(part->into) + count(part->from);
    bool one =
        message.body.type == local::Body::WorkerWelcome || message.body.type == local::Body::FillSegment;
    return one ? 1 : 0;
}

Status to_status(const local::FailureT &failure) {
    auto code = [&] {
        switch (failure.code) {
            case local::Refusal::NotPermitted:
                return Code::permission_denied;
            case local::Refusal::NoSuchGroup:
                return Code::not_found;
            case local::Refusal::Stale:
                return Code::stale;
            case local::Refusal::NotReady:
                return Code::unavailable;
            case local::Refusal::NoMemory:
                return Code::resource_exhausted;
            case local::Refusal::Unsupported:
                return Code::unsupported;
            case local::Refusal::BadMessage:
                return Code::invalid_argument;
            case local::Refusal::Unknown:
            case local::Refusal::Internal:
                break;
        }
        return Code::internal;
    }();
    return Status(code, failure.text);
}

Result<LocalClient> LocalClient::connect(const std::string &socket_path, local::Role role, Timeout timeout) {
    auto deadline = std::chrono::steady_clock::now() + timeout;
    auto client = open(socket_path, deadline);
    if (!client) return client;
    auto reply = client->call(greeting(role), time_left(deadline));
    if (!reply) return reply.take_status();
    auto *answer = reply->message.body.AsHelloReply();
    if (!answer) return Status(Code::corrupt, "the daemon did not answer the greeting");
    client->server_ = std::move(*answer);
    return client;
}

Result<LocalMessage> LocalClient::ask_message(const std::string &socket_path, local::Role role,
                                              const local::MessageT &message, Timeout timeout) {
    auto deadline = std::chrono::steady_clock::now() + timeout;
    auto client = open(socket_path, deadline);
    if (!client) return client.take_status();
    DLROVER_TRY(client->send_message(make_local(first_id, greeting(role)), time_left(deadline)));
    DLROVER_TRY(client->send_message(message, time_left(deadline)));
    auto greeted = client->await_answer(first_id, deadline);
    if (!greeted) return greeted;
    return client->await_answer(message.id, deadline);
}

Result<LocalClient> LocalClient::open(const std::string &socket_path, SteadyTime deadline) {
    auto socket = open_socket(socket_path, deadline);
    if (!socket) return socket.take_status();
    LocalClient client;
    client.socket_ = std::move(*socket);
    return client;
}

Status LocalClient::fail(Status status) {
    socket_.reset();
    return status;
}

Status LocalClient::send_message(const local::MessageT &message, Timeout timeout) {
    if (!socket_) return Status(Code::unavailable, "the connection to the daemon is closed");
    Bytes payload = encode_local(message);
    if (payload.size() > max_frame_bytes)
        return Status(Code::invalid_argument, "message larger than a frame");
    Bytes frame = make_frame(payload);
    auto deadline = std::chrono::steady_clock::now() + timeout;
    std::size_t sent = 0;
    while (sent < frame.size()) {
        ssize_t n =
            ::send(socket_.get(), frame.data() + sent, frame.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) {
            sent += static_cast<std::size_t>(n);
        } else if (errno == EAGAIN) {
            if (Status s = wait_for(socket_.get(), POLLOUT, deadline); !s.ok()) return fail(std::move(s));
        } else if (errno != EINTR) {
            return fail(Status::from_errno("send to the daemon"));
        }
    }
    return {};
}

Result<LocalMessage> LocalClient::next_message(SteadyTime deadline) {
    for (;;) {
        if (auto payload = reader_.next()) {
            auto message = decode_local(*payload);
            if (!message) return fail(message.take_status());
            LocalMessage result{std::move(*message), {}};
            std::size_t wanted = fds_of(result.message);
            if (wanted > fds_.size())
                return fail(Status(Code::corrupt, "descriptors are missing from a message"));
            for (std::size_t i = 0; i < wanted; ++i) {
                result.fds.push_back(std::move(fds_.front()));
                fds_.pop_front();
            }
            return result;
        }
        DLROVER_TRY(wait_for(socket_.get(), POLLIN, deadline));
        std::uint8_t buffer[65536];
        auto received = receive_with_fds(socket_.get(), buffer);
        if (!received) {
            if (received.status().code() == Code::timeout) continue;
            return fail(received.take_status());
        }
        if (received->bytes == 0) return fail(Status(Code::unavailable, "the daemon closed the connection"));
        for (auto &fd : received->fds) fds_.push_back(std::move(fd));
        if (Status s = reader_.feed({buffer, received->bytes}); !s.ok()) return fail(std::move(s));
    }
}

Result<LocalMessage> LocalClient::call_message(const local::MessageT &message, Timeout timeout) {
    auto deadline = std::chrono::steady_clock::now() + timeout;
    DLROVER_TRY(send_message(message, timeout));
    return await_answer(message.id, deadline);
}

Result<LocalMessage> LocalClient::await_answer(std::uint32_t id, SteadyTime deadline) {
    for (;;) {
        auto reply = next_message(deadline);
        if (!reply) return fail(reply.take_status());
        if (reply->message.id == id) {
            if (auto *failure = reply->message.body.AsFailure()) return to_status(*failure);
            return reply;
        }
        if (reply->message.id != 0)
            return fail(Status(Code::corrupt, "answer to a request that was not made"));
        if (pushes_.size() >= max_kept_pushes)
            return fail(Status(Code::resource_exhausted, "too many unread messages"));
        pushes_.push_back(std::move(*reply));
    }
}

Result<LocalMessage> LocalClient::receive(Timeout timeout) {
    if (!pushes_.empty()) {
        LocalMessage message = std::move(pushes_.front());
        pushes_.pop_front();
        return message;
    }
    if (!socket_) return Status(Code::unavailable, "the connection to the daemon is closed");
    return next_message(std::chrono::steady_clock::now() + timeout);
}

}  // namespace dlrover::proto
