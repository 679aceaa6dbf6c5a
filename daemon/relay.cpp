// SPDX-License-Identifier: Apache-2.0
#include "daemon/relay.h"

#include <algorithm>

namespace dlrover::daemon {
namespace {

constexpr std::size_t max_questions = 64;
constexpr std::size_t max_nodes_asked = 3;
constexpr EventLoop::Time node_time = std::chrono::seconds(2);

}  // namespace

Relay::~Relay() {
    *alive_ = false;
}

void Relay::ask(std::uint32_t uid, JobId job, local::MessageT request, Answer answer) {
    if (questions_.size() >= max_questions) return answer(std::nullopt);
    std::uint32_t id = next_id_++;
    Question &question = questions_[id];
    question.uid = uid;
    question.job = job;
    question.request = proto::encode_local(request);
    question.answer = std::move(answer);
    slurm_.load_job(job, [this, alive = alive_, id, uid](Result<SlurmJob> loaded) {
        if (!*alive || !questions_.contains(id)) return;
        if (!loaded || (uid != 0 && loaded->uid != uid) || loaded->nodes.empty())
            return finish(id, std::nullopt);
        auto names = loaded->nodes;
        names.resize(std::min(names.size(), max_nodes_asked));
        slurm_.load_addresses(names, [this, alive, id](Result<std::vector<NodeAddress>> addresses) {
            if (!*alive || !questions_.contains(id)) return;
            if (!addresses) return finish(id, std::nullopt);
            Question &q = questions_[id];
            q.nodes.assign(addresses->rbegin(), addresses->rend());
            if (q.nodes.empty()) return finish(id, std::nullopt);
            q.connected = false;
            q.nodes.push_back({});  // try_next() leaves the one before
            try_next(id);
        });
    });
}

void Relay::leave_node(Question &question) {
    if (question.connected) peers_.release(question.nodes.back().node);
    question.connected = question.sent = false;
}

void Relay::try_next(std::uint32_t id) {
    Question &question = questions_[id];
    leave_node(question);
    question.nodes.pop_back();
    if (question.nodes.empty()) return finish(id, std::nullopt);
    const NodeAddress &next = question.nodes.back();
    question.connected = true;
    question.timer = loop_.after(node_time, [this, id] { try_next(id); });
    peers_.connect_to(next.node, next.address);
    if (peers_.up(next.node)) send(id, question);
}

void Relay::send(std::uint32_t id, Question &question) {
    question.sent = true;
    transport::PeerEnvelope envelope;
    envelope.kind = transport::PeerEnvelope::Kind::request;
    envelope.job_id = question.job.value();
    envelope.id = id;
    envelope.uid = question.uid;
    envelope.payload = question.request;
    peers_.send(question.nodes.back().node, std::move(envelope));
}

void Relay::on_link(const std::string &node, bool up) {
    if (!up) return;
    for (auto &[id, question] : questions_)
        if (question.connected && !question.sent && question.nodes.back().node == node) send(id, question);
}

void Relay::on_reply(const transport::PeerEnvelope &envelope) {
    if (!questions_.contains(envelope.id)) return;
    auto message = proto::decode_local(envelope.payload);
    if (message.ok()) finish(envelope.id, std::move(*message));
}

void Relay::finish(std::uint32_t id, std::optional<local::MessageT> message) {
    auto node = questions_.extract(id);
    leave_node(node.mapped());
    node.mapped().answer(std::move(message));
}

}  // namespace dlrover::daemon
