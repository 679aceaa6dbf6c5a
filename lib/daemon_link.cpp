// SPDX-License-Identifier: Apache-2.0
#include "lib/daemon_link.h"

#include <poll.h>

#include <algorithm>

namespace dlrover::lib {
namespace {

using namespace std::chrono_literals;
constexpr auto first_pause = 10ms, longest_pause = 250ms;

bool worth_retrying(Code code) {
    return code == Code::unavailable || code == Code::timeout || code == Code::system;
}

}  // namespace

DaemonLink::DaemonLink(const Environment &environment, Welcome welcome)
    : environment_(environment), welcome_(std::move(welcome)) {}

std::chrono::milliseconds DaemonLink::left(Clock::time_point deadline) {
    return std::max(std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()), 1ms);
}

void DaemonLink::note() {
    if (!connected()) fd_.store(-1, std::memory_order_relaxed);
}

void DaemonLink::disconnect() {
    fd_.store(-1, std::memory_order_relaxed);
    client_.reset();
}

Status DaemonLink::say_hello(std::chrono::milliseconds timeout) {
    proto::local::WorkerHelloT hello;
    hello.job_id = environment_.job.value();
    hello.step_id = environment_.step.value();
    hello.generation = std::make_unique<proto::Generation>(environment_.generation.term.value(),
                                                           environment_.generation.number);
    hello.rank = environment_.rank;
    hello.local_rank = static_cast<std::uint16_t>(environment_.local_rank);
    hello.stays = environment_.stays;
    auto reply = client_->call(std::move(hello), timeout);
    if (!reply) return reply.take_status();
    auto *answer = reply->message.body.AsWorkerWelcome();
    if (answer == nullptr || reply->fds.size() != 1)
        return Status(Code::corrupt, "the daemon did not answer the worker's greeting");
    return welcome_(*answer, std::move(reply->fds.front()));
}

Status DaemonLink::connect_once(std::chrono::milliseconds timeout) {
    disconnect();
    auto client = proto::LocalClient::connect(environment_.socket, proto::local::Role::Worker, timeout);
    if (!client) return client.take_status();
    client_ = std::move(*client);
    fd_.store(client_->fd(), std::memory_order_relaxed);
    Status said = say_hello(timeout);
    if (said.ok()) ++connections_;
    // A daemon that has just come back may not have its groups yet.
    if (said.code() == Code::not_found && connections_ != 0) said = Status(Code::unavailable, said.message());
    if (said.code() == Code::stale) stale_ = said.message();
    if (!said.ok()) disconnect();
    return said;
}

Status DaemonLink::connect(Clock::time_point deadline) {
    auto pause = first_pause;
    for (;;) {
        if (!stale_.empty()) return Status(Code::stale, stale_);
        if (connected()) return {};
        Status status = connect_once(left(deadline));
        if (status.ok() || !worth_retrying(status.code())) return status;
        if (Clock::now() + pause >= deadline) return Status(Code::unavailable, status.message());
        ::poll(nullptr, 0, static_cast<int>(pause.count()));
        pause = std::min(2 * pause, longest_pause);
    }
}

Result<proto::LocalMessage> DaemonLink::retry(Clock::time_point deadline, const Attempt &attempt) {
    auto pause = first_pause;
    for (;;) {
        DLROVER_TRY(connect(deadline));
        auto reply = attempt(left(deadline));
        note();
        if (reply.ok() || !worth_retrying(reply.status().code())) return reply;
        if (Clock::now() + pause >= deadline) return reply;
        if (connected()) ::poll(nullptr, 0, static_cast<int>(pause.count()));
        pause = std::min(2 * pause, longest_pause);
    }
}

Result<proto::LocalMessage> DaemonLink::next_push() {
    DLROVER_TRY(connect(Clock::now()));
    auto push = client_->receive(0ms);
    note();
    return push;
}

}  // namespace dlrover::lib
