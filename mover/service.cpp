// SPDX-License-Identifier: Apache-2.0
#include "mover/service.h"

#include <algorithm>
#include <iterator>

#include "ckpt/block_kernel.h"
#include "ckpt/erasure.h"
#include "ckpt/object_message.h"
#include "ckpt/segment_grants.h"
#include "transport/bulk_ucx.h"

namespace dlrover::mover {
namespace {

namespace local = proto::local;
using transport::BulkMethod, transport::BulkMethods;
constexpr char too_many[] = "the mover has too many orders already";
constexpr BulkMethods by_tcp = static_cast<BulkMethods>(BulkMethod::tcp),
                      by_ucx = static_cast<BulkMethods>(BulkMethod::ucx);

Result<transport::Key> make_key(const std::vector<std::uint8_t> &bytes) {
    if (bytes.size() != transport::key_bytes)
        return Status(Code::invalid_argument, "a key of another length");
    return transport::Key(std::span<const std::uint8_t, transport::key_bytes>(bytes));
}

/// What of the allowed ways can be gone here; `text` says why not all.
BulkMethods usable_ways(const local::MoverWelcomeT &welcome, std::string &text) {
    BulkMethods ways = welcome.ways & by_tcp;
    if (!transport::contains(welcome.ways, BulkMethod::ucx)) return ways;
    if (!welcome.ucx_anywhere && !transport::rdma_present()) {
        text = "no RDMA network is up here";
        return ways;
    }
    transport::ucx_allow(welcome.ucx_anywhere ? transport::UcxNetworks::any : transport::UcxNetworks::rdma);
    Status usable = transport::ucx_usable();
    if (usable.ok())
        ways |= by_ucx;
    else
        text = usable.message();
    return ways;
}

/// Of what a name stands for, the first that can be reached from `own` (empty: any).
Result<transport::SocketAddress> address_to(Names &names, const std::string &text, const std::string &own) {
    auto found = names.resolve(text);
    if (!found) return found.take_status();
    auto from = transport::parse_address(own);
    for (const auto &address : *found)
        if (!from.ok() || address.family() == from->family()) return address;
    return Status(Code::unavailable, text + " can not be reached from " + own);
}

/// `fds`: what is left is theirs.
std::vector<OwnObject> own_objects(const local::ExpectObjectT &message, std::vector<UniqueFd> &fds) {
    std::vector<OwnObject> all;
    auto next = fds.begin() + static_cast<std::ptrdiff_t>(std::min(message.segments.size(), fds.size()));
    const auto first = next;
    for (const auto &own : message.own) {
        if (!own || own->segments.size() > static_cast<std::size_t>(fds.end() - next)) break;
        auto end = next + static_cast<std::ptrdiff_t>(own->segments.size());
        std::vector<UniqueFd> its(std::make_move_iterator(next), std::make_move_iterator(end));
        next = end;
        auto who = ckpt::identity_in(message);
        if (!who) break;
        who->rank = Rank(own->rank);
        ckpt::KnownObject object{std::move(*who),
                                 {own->data_bytes, own->table_offset, own->table_bytes, own->table_xxh3}};
        all.push_back({ckpt::to_grants(own->segments, std::move(its)), std::move(object)});
    }
    fds.erase(first, fds.end());
    return all;
}

Result<ArrivalOrder> make_arrival(helper::Ticket ticket, Names &names, const local::ExpectObjectT &message,
                                  std::vector<UniqueFd> fds) {
    auto key = make_key(message.key);
    if (!key) return key.take_status();
    auto from = names.resolve(message.from);
    if (!from) return from.take_status();
    auto object = ckpt::object_in(message);
    if (!object) return object.take_status();
    auto own = own_objects(message, fds);
    ArrivalOrder order;
    order.ticket = ticket;
    order.transfer = message.transfer;
    order.key = *key;
    order.from = std::move(*from);
    order.segments = ckpt::to_grants(message.segments, std::move(fds));
    order.object = std::move(*object);
    order.object.parity = message.parity;
    order.own = std::move(own);
    order.chunks_only = message.chunks_only;
    order.wait = std::chrono::milliseconds(message.wait_ms);
    return order;
}

/// What `source` is multiplied by.
Result<std::uint8_t> factor_in(const local::FoldObjectT &message) {
    auto factors = ckpt::code_factors({message.data, ckpt::max_code_parity}, message.target, message.given);
    if (!factors) return factors.take_status();
    std::size_t place = message.source;
    if (!message.given.empty())
        place = static_cast<std::size_t>(std::ranges::find(message.given, message.source) -
                                         message.given.begin());
    if (place >= factors->size()) return Status(Code::invalid_argument, "it is not made of that part");
    return (*factors)[place];
}

Result<FoldOrder> make_fold(helper::Ticket ticket, const local::FoldObjectT &message,
                            std::vector<UniqueFd> fds) {
    auto factor = factor_in(message);
    if (!factor) return factor.take_status();
    if (fds.size() < message.into.size()) return Status(Code::invalid_argument, "descriptors are missing");
    auto second = fds.begin() + static_cast<std::ptrdiff_t>(message.into.size());
    std::vector<UniqueFd> from(std::make_move_iterator(second), std::make_move_iterator(fds.end()));
    fds.erase(second, fds.end());
    FoldOrder order;
    order.ticket = ticket;
    order.into = ckpt::to_grants(message.into, std::move(fds));
    order.from = ckpt::to_grants(message.from, std::move(from));
    order.sum_bytes = message.sum_bytes;
    order.bytes = message.bytes;
    order.factor = *factor;
    order.last = message.last;
    order.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(message.wait_ms);
    if (!message.checkpoint) return order;
    auto object = ckpt::object_in(message);
    if (!object) return object.take_status();
    order.object = std::move(*object);
    return order;
}

}  // namespace

Service::Service(const helper::Environment &environment, helper::Outbox outbox)
    : environment_(environment),
      outbox_(std::move(outbox)),
      sends_(outbox_),
      folds_(outbox_),
      measurer_(outbox_),
      session_(environment.socket, local::Role::Mover, outbox_,
               {[this](proto::LocalClient &client) { return greet(client); },
                [this](proto::LocalMessage push) { take(std::move(push)); }, [this] { lose(); }}) {}

Status Service::greet(proto::LocalClient &client) {
    local::MoverHelloT hello;
    hello.job_id = environment_.job.value();
    hello.step_id = environment_.step.value();
    auto reply = client.call(std::move(hello), helper::answer_limit);
    if (!reply) return reply.take_status();
    auto *welcome = reply->message.body.AsMoverWelcome();
    if (welcome == nullptr) return Status(Code::corrupt, "the daemon did not answer the mover's greeting");
    welcome_ = std::move(*welcome);
    rate_ = welcome_.bytes_per_second ? std::make_shared<transport::RateLimit>(welcome_.bytes_per_second)
                                      : nullptr;
    local::MoverReadyT ready;
    ready.answers = true;
    Status listens = listen(welcome_, ready);
    if (listens.code() == Code::resource_exhausted) return listens;  // and it is tried again
    if (!listens.ok()) ready.text = listens.message();
    return client.send(std::move(ready), helper::answer_limit);
}

Status Service::listen(const local::MoverWelcomeT &welcome, local::MoverReadyT &ready) {
    transport::BulkServerOptions options;
    options.listen.address = welcome.address;
    options.methods = usable_ways(welcome, ready.text);
    options.hash = ckpt::block_kernel().hash;
    auto server = transport::BulkServer::start(options);
    if (!server) return server.take_status();
    arrivals_.emplace(outbox_, std::move(*server));
    ready.port = arrivals_->port();
    ready.ways = options.methods;
    ready.takes_own = ready.exact = true;
    return {};
}

void Service::lose() {
    arrivals_.reset();
    sends_.cancel_all();
    folds_.cancel_all();
}

void Service::run() {
    sends_.start();
    folds_.start();
    session_.run();
}

void Service::take(proto::LocalMessage push) {
    auto &body = push.message.body;
    if (auto *expect = body.AsExpectObject()) return take_expect(*expect, std::move(push.fds));
    if (auto *send = body.AsSendObject()) return take_send(*send, std::move(push.fds));
    if (auto *fold = body.AsFoldObject()) return take_fold(*fold, std::move(push.fds));
    if (auto *measure = body.AsMeasureNode()) return take_measure(*measure, std::move(push.fds));
    if (auto *call = body.AsCallMover()) outbox_.put(session_.ticket(call->order), local::MoverAnswerT());
    if (auto *cancel = body.AsCancelOrder()) {
        sends_.cancel(session_.ticket(cancel->order));
        folds_.cancel(session_.ticket(cancel->order));
        if (arrivals_) arrivals_->cancel(session_.ticket(cancel->order));
    }
}

void Service::take_expect(const local::ExpectObjectT &message, std::vector<UniqueFd> fds) {
    auto ticket = session_.ticket(message.order);
    auto order = make_arrival(ticket, names_, message, std::move(fds));
    Status status = order.ok() ? Status() : order.take_status();
    if (status.ok() && !arrivals_) status = Status(Code::unavailable, "the mover listens nowhere");
    if (status.ok()) status = arrivals_->expect(std::move(*order));
    local::ExpectingObjectT answer;
    answer.ok = status.ok();
    answer.text = status.message();
    outbox_.put(ticket, std::move(answer));
}

void Service::take_send(const local::SendObjectT &message, std::vector<UniqueFd> fds) {
    auto ticket = session_.ticket(message.order);
    auto refuse = [&](std::string why) {
        local::ObjectSentT refusal;
        refusal.text = std::move(why);
        outbox_.put(ticket, std::move(refusal));
    };
    auto key = make_key(message.key);
    if (!key) return refuse(key.status().message());
    auto to = address_to(names_, message.address, welcome_.address);
    if (!to) return refuse(to.status().message());
    auto cancellation = transport::Cancellation::create();
    if (!cancellation) return refuse(cancellation.status().message());
    SendOrder order;
    if (message.checkpoint) {
        auto object = ckpt::object_in(message);
        if (!object) return refuse(object.status().message());
        order.object = std::move(*object);
        order.object->parity = message.parity;
    }
    order.ticket = ticket;
    order.segments = ckpt::to_grants(message.segments, std::move(fds));
    order.bytes = message.bytes;
    order.job.to = *to;
    order.job.to.set_port(message.port);
    order.job.from = welcome_.address;
    order.job.transfer = message.transfer;
    order.job.key = *key;
    order.job.method = static_cast<BulkMethod>(message.way);
    order.job.streams = welcome_.streams;
    order.job.rate = rate_;
    order.job.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(message.wait_ms);
    order.job.cancellation = *cancellation;
    order.job.hash = ckpt::block_kernel().hash;
    if (!sends_.submit(std::move(order))) refuse(too_many);
}

void Service::take_measure(const local::MeasureNodeT &message, std::vector<UniqueFd> fds) {
    MeasureOrder order;
    order.ticket = session_.ticket(message.order);
    order.into = ckpt::to_grants(message.segments, std::move(fds));
    order.bytes = message.bytes;
    order.work = message.work;
    order.gpus = message.gpus;
    order.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(message.wait_ms);
    measurer_.begin(std::move(order));
}

void Service::take_fold(const local::FoldObjectT &message, std::vector<UniqueFd> fds) {
    auto ticket = session_.ticket(message.order);
    auto order = make_fold(ticket, message, std::move(fds));
    Status status = order.ok() ? Status() : order.take_status();
    if (status.ok() && !folds_.submit(std::move(*order))) status = Status(Code::resource_exhausted, too_many);
    if (status.ok()) return;
    local::ObjectFoldedT refusal;
    refusal.text = status.message();
    outbox_.put(ticket, std::move(refusal));
}

}  // namespace dlrover::mover
