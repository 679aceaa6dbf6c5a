// SPDX-License-Identifier: Apache-2.0
#include "writer/service.h"

#include <poll.h>

#include <algorithm>

namespace dlrover::writer {
namespace {

using namespace std::chrono_literals;
namespace local = proto::local;
constexpr auto first_pause = 50ms, longest_pause = 1000ms;
constexpr auto answer_limit = 5000ms;
constexpr char too_many[] = "the writer has too many orders already";

}  // namespace

Service::Service(const Environment &environment, Outbox outbox, std::string node)
    : environment_(environment),
      outbox_(std::move(outbox)),
      stores_(outbox_),
      folders_(outbox_, environment.run, std::move(node)) {}

Status Service::connect() {
    client_.reset();
    auto client = proto::LocalClient::connect(environment_.socket, local::Role::Writer, answer_limit);
    if (!client) return client.take_status();
    local::WriterHelloT hello;
    hello.job_id = environment_.job.value();
    hello.step_id = environment_.step.value();
    auto reply = client->call(std::move(hello), answer_limit);
    if (!reply) return reply.take_status();
    auto *welcome = reply->message.body.AsWriterWelcome();
    if (welcome == nullptr) return Status(Code::corrupt, "the daemon did not answer the writer's greeting");
    auto to = make_destination(*welcome);
    if (!to) return to.take_status();
    to_ = std::move(*to);
    line_ = std::make_shared<const Line>(client->fd());
    client_ = std::move(*client);
    ++connections_;
    return {};
}

void Service::run() {
    stores_.start();
    folders_.start();
    std::chrono::milliseconds pause = first_pause;
    for (;;) {
        auto start = std::chrono::steady_clock::now();
        // Why not is the agent's to say: it has the same daemon. Ours is to come back.
        if (connect().ok()) serve();
        line_.reset();
        stores_.cancel_all();
        folders_.cancel_all();
        if (std::chrono::steady_clock::now() - start > longest_pause) pause = first_pause;
        ::poll(nullptr, 0, static_cast<int>(pause.count()));
        pause = std::min<std::chrono::milliseconds>(2 * pause, longest_pause);
    }
}

/// Until the connection ends.
void Service::serve() {
    pollfd polled[] = {{client_->fd(), POLLIN, 0}, {outbox_.fd(), POLLIN, 0}};
    while (client_->connected()) {
        // Before waiting: orders may have come together with the welcome.
        for (auto push = client_->receive(0ms); push.ok(); push = client_->receive(0ms))
            take(std::move(*push));
        send_answers();
        if (client_->connected()) ::poll(polled, 2, -1);
    }
}

void Service::send_answers() {
    for (Outbox::Answer &answer : outbox_.take()) {
        if (answer.connection != connections_ || !client_->connected()) continue;
        (void)client_->send_made(answer.message, answer_limit).ok();
    }
}

void Service::take(proto::LocalMessage push) {
    auto &body = push.message.body;
    if (auto *store = body.AsStoreObject()) return take_store(*store, std::move(push.fds));
    if (auto *look = body.AsLookAtFolder()) return take_look(*look);
    if (auto *complete = body.AsCompleteCheckpoint()) return take_complete(*complete);
    if (auto *order = body.AsCancelOrder()) {
        stores_.cancel(ticket(order->order));
        folders_.cancel(ticket(order->order));
    }
}

void Service::take_store(const local::StoreObjectT &message, std::vector<UniqueFd> fds) {
    local::ObjectStoredT refusal;
    refusal.rank = message.rank;
    auto order = make_store_order(ticket(message.order), line_, to_, message, std::move(fds));
    if (!order)
        refusal.text = order.status().message();
    else if (stores_.submit(std::move(*order)))
        return;
    else
        refusal.text = too_many;
    outbox_.put(ticket(message.order), std::move(refusal));
}

void Service::take_look(const local::LookAtFolderT &message) {
    if (folders_.submit(LookOrder{ticket(message.order), to_})) return;
    local::FolderFoundT refusal;
    refusal.text = too_many;
    outbox_.put(ticket(message.order), std::move(refusal));
}

void Service::take_complete(const local::CompleteCheckpointT &message) {
    local::CheckpointStoredT refusal;
    auto checkpoint = make_checkpoint(message.checkpoint.get());
    if (!checkpoint)
        refusal.text = checkpoint.status().message();
    else if (folders_.submit(CompleteOrder{ticket(message.order), to_, *checkpoint,
                                           std::chrono::milliseconds(message.wait_ms)}))
        return;
    else
        refusal.text = too_many;
    outbox_.put(ticket(message.order), std::move(refusal));
}

}  // namespace dlrover::writer
