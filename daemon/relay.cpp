// SPDX-License-Identifier: Apache-2.0
#include "daemon/relay.h"

#include <algorithm>
#include <iterator>

namespace dlrover::daemon {
namespace {

constexpr std::size_t max_questions = 64;
constexpr std::ptrdiff_t max_questions_of_user = 4;
constexpr std::size_t max_nodes_asked = 256;
/// Taken for one question: the loop decodes them.
constexpr std::size_t max_answer_bytes = 8u << 20;
constexpr EventLoop::Time patience = std::chrono::seconds(2), slurm_patience = std::chrono::seconds(1);
/// Where no member is linked to this node Slurm's word is waited for.
constexpr EventLoop::Time slurm_limit = std::chrono::seconds(15);

}  // namespace

Relay::~Relay() {
    *alive_ = false;
}

bool Relay::has_room(std::uint32_t uid) const {
    auto his = std::count_if(questions_.begin(), questions_.end(),
                             [&](const auto &entry) { return entry.second.uid == uid; });
    return questions_.size() < max_questions && (uid == 0 || his < max_questions_of_user);
}

void Relay::ask(std::uint32_t uid, JobId job, local::MessageT request, Answer answer, Nodes known) {
    if (!has_room(uid)) return answer({});
    std::uint32_t id = next_id_++;
    Question &question = questions_[id];
    question.uid = uid;
    question.job = job;
    question.request = proto::encode_local(request);
    question.answer = std::move(answer);
    question.known = std::move(known);
    question.timer = loop_.after(slurm_patience, [this, id] { ask_members(id, true); });
    if (job == JobId(0))
        return slurm_.load_jobs_of(uid, [this, alive = alive_, id](const auto &jobs) {
            if (*alive) find_nodes(id, jobs);
        });
    auto on_job = [this, alive = alive_, id](Result<SlurmJob> loaded) {
        if (!*alive) return;
        if (!loaded) return find_nodes(id, loaded.take_status());
        find_nodes(id, std::vector<SlurmJob>{std::move(*loaded)});
    };
    slurm_.load_job(job, std::move(on_job), SlurmClient::Asker::person);
}

void Relay::find_nodes(std::uint32_t id, const Result<std::vector<SlurmJob>> &jobs) {
    auto question = questions_.find(id);
    if (question == questions_.end() || question->second.asked) return;
    if (!jobs) return ask_members(id, false);
    std::uint32_t uid = question->second.uid;
    std::set<std::string> names = question->second.known.joined;
    for (const SlurmJob &job : *jobs)
        if (uid == 0 || job.uid == uid) names.insert(job.nodes.begin(), job.nodes.end());
    names.erase(self_);
    while (names.size() > max_nodes_asked) names.erase(std::prev(names.end()));
    if (names.empty()) return finish(id);
    auto on_addresses = [this, alive = alive_, id](Result<std::vector<NodeAddress>> addresses) {
        if (!*alive) return;
        auto it = questions_.find(id);
        if (it == questions_.end() || it->second.asked) return;
        if (!addresses || addresses->empty()) return ask_members(id, false);
        ask_nodes(id, *addresses);
    };
    slurm_.load_addresses({names.begin(), names.end()}, std::move(on_addresses), SlurmClient::Asker::person);
}

void Relay::ask_nodes(std::uint32_t id, const std::vector<NodeAddress> &nodes) {
    Question &question = questions_[id];
    question.asked = true;
    question.timer = loop_.after(patience, [this, id] { finish(id); });
    for (const auto &node : nodes) {
        question.waiting.insert(node.node);
        question.connected.insert(node.node);
        peers_.connect_to(node.node, node.address);
        if (peers_.up(node.node)) send(id, question, node.node);
    }
}

/// Without Slurm's word: those that this node has to do with now.
void Relay::ask_members(std::uint32_t id, bool may_wait) {
    Question &question = questions_[id];
    for (const auto &node : question.known.members)
        if (node != self_ && peers_.up(node) && question.waiting.size() < max_nodes_asked)
            question.waiting.insert(node);
    if (question.waiting.empty() && !may_wait) return finish(id);
    question.asked = !question.waiting.empty();
    question.timer = loop_.after(question.asked ? patience : slurm_limit, [this, id] { finish(id); });
    for (const auto &node : question.waiting) send(id, question, node);
}

void Relay::send(std::uint32_t id, const Question &question, const std::string &node) {
    transport::PeerEnvelope envelope;
    envelope.kind = transport::PeerEnvelope::Kind::request;
    envelope.job_id = question.job.value();
    envelope.id = id;
    envelope.uid = question.uid;
    envelope.payload = question.request;
    peers_.send(node, std::move(envelope));
}

void Relay::on_link(const std::string &node, bool up) {
    if (!up) return;
    for (const auto &[id, question] : questions_)
        if (question.waiting.contains(node)) send(id, question, node);
}

void Relay::on_reply(const std::string &node, const transport::PeerEnvelope &envelope) {
    auto it = questions_.find(envelope.id);
    if (it == questions_.end() || it->second.waiting.erase(node) == 0) return;
    it->second.answer_bytes += envelope.payload.size();
    if (it->second.answer_bytes <= max_answer_bytes) {
        auto message = proto::decode_local(envelope.payload);
        if (message.ok()) it->second.answers.push_back(std::move(*message));
    }
    if (it->second.waiting.empty()) finish(envelope.id);
}

void Relay::finish(std::uint32_t id) {
    auto question = questions_.extract(id);
    for (const auto &node : question.mapped().connected) peers_.release(node);
    question.mapped().answer(std::move(question.mapped().answers));
}

}  // namespace dlrover::daemon
