// SPDX-License-Identifier: Apache-2.0
#include "writer/service.h"

namespace dlrover::writer {
namespace {

namespace local = proto::local;
constexpr char too_many[] = "the writer has too many orders already";

}  // namespace

Service::Service(const Environment &environment, Outbox outbox, std::string node)
    : environment_(environment),
      outbox_(std::move(outbox)),
      stores_(outbox_),
      folders_(outbox_, environment.run, std::move(node)),
      life_sign_(outbox_),
      session_(environment.socket, local::Role::Writer, outbox_,
               {[this](proto::LocalClient &client) { return greet(client); },
                [this](proto::LocalMessage push) { take(std::move(push)); }, [this] { lose(); }}) {}

Status Service::greet(proto::LocalClient &client) {
    local::WriterHelloT hello;
    hello.job_id = environment_.job.value();
    hello.step_id = environment_.step.value();
    auto reply = client.call(std::move(hello), helper::answer_limit);
    if (!reply) return reply.take_status();
    auto *welcome = reply->message.body.AsWriterWelcome();
    if (welcome == nullptr) return Status(Code::corrupt, "the daemon did not answer the writer's greeting");
    auto to = make_destination(*welcome);
    if (!to) return to.take_status();
    to_ = std::move(*to);
    line_ = std::make_shared<const Line>(client.fd());
    life_sign_.speak_to(session_.ticket(0).connection);
    return {};
}

void Service::lose() {
    line_.reset();
    stores_.cancel_all();
    folders_.cancel_all();
}

void Service::run() {
    stores_.start();
    folders_.start();
    life_sign_.start();
    session_.run();
}

void Service::take(proto::LocalMessage push) {
    auto &body = push.message.body;
    if (auto *store = body.AsStoreObject()) return take_store(*store, std::move(push.fds));
    if (auto *look = body.AsLookAtFolder()) return take_look(*look);
    if (auto *test = body.AsTestFolder()) return take_test(*test);
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
    LookOrder order{ticket(message.order), to_, {}};
    for (const auto &p : message.passed_over)
        if (p && p->before)
            order.passed_over.push_back(
                {TrainStep(p->after), {Term(p->before->term()), p->before->number()}});
    if (folders_.submit(std::move(order))) return;
    local::FolderFoundT refusal;
    refusal.text = too_many;
    outbox_.put(ticket(message.order), std::move(refusal));
}

/// Of too many the daemon hears nothing: it asks again.
void Service::take_test(const local::TestFolderT &message) {
    (void)folders_.submit(TestOrder{ticket(message.order), to_, message.node, message.make});
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
