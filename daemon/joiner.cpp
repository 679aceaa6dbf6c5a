// SPDX-License-Identifier: Apache-2.0
#include "daemon/joiner.h"

#include <algorithm>

#include "common/log.h"

namespace dlrover::daemon {
namespace {

constexpr std::size_t max_attempts = 64;
constexpr std::ptrdiff_t max_attempts_of_user = 8;
constexpr std::size_t max_nodes_asked = 16;
constexpr EventLoop::Time ask_again = std::chrono::milliseconds(500);
constexpr EventLoop::Time patience = std::chrono::seconds(60);
/// Agents ask within seconds why it failed.
constexpr EventLoop::Time failure_kept = std::chrono::minutes(10);

}  // namespace

Joiner::~Joiner() {
    *alive_ = false;
    for (auto &[job, attempt] : attempts_) release(attempt);
}

Joiner::Attempt *Joiner::find(StepKey joins) {
    auto it = attempts_.find(joins);
    return it == attempts_.end() ? nullptr : &it->second;
}

Status Joiner::room_for(std::uint32_t uid) {
    std::erase_if(attempts_, [&](const auto &entry) {
        return entry.second.failed && loop_.now() >= entry.second.until;
    });
    auto his = std::ranges::count_if(attempts_,
                                     [&](const auto &entry) { return entry.second.request.step.uid == uid; });
    if (attempts_.size() < max_attempts && his < max_attempts_of_user) return {};
    return Status(Code::resource_exhausted,
                  "too many steps on this node want to join others: try again later");
}

Status Joiner::begin(Request request) {
    StepKey joins = request.key();
    if (attempts_.contains(joins)) return {};
    DLROVER_TRY(room_for(request.step.uid));
    Attempt &attempt = attempts_[joins];
    attempt.request = std::move(request);
    attempt.until = loop_.now() + patience;
    ask(joins);
    return {};
}

Status Joiner::state(StepKey joins, std::uint32_t uid) const {
    auto it = attempts_.find(joins);
    if (it == attempts_.end() || it->second.request.step.uid != uid) return {};
    if (it->second.failed) return Status(Code::not_found, *it->second.failed);
    return Status(Code::unavailable, "job " + std::to_string(it->second.request.job.value()) +
                                         " has not taken this node in yet");
}

void Joiner::forget(StepKey joins) {
    Attempt *attempt = find(joins);
    if (!attempt) return;
    release(*attempt);
    attempts_.erase(joins);
}

void Joiner::release(Attempt &attempt) {
    for (const auto &node : attempt.connected) peers_.release(node);
    attempt.connected.clear();
    attempt.timer.reset();
}

/// Kept for the agents to hear, until their step ends or for a while.
void Joiner::fail(Attempt &attempt, Status why) {
    release(attempt);
    log::warning({JobId(attempt.request.step.job_id), StepId(attempt.request.step.step_id)},
                 "this node does not join job " + std::to_string(attempt.request.job.value()) + ": " +
                     log::one_line(why.message()));
    attempt.failed = why.message();
    attempt.until = loop_.now() + failure_kept;
    attempt.request.launch.reset();
}

/// Those that Slurm has in the job now: one of them knows the leader.
void Joiner::find_nodes(StepKey joins) {
    slurm_.load_job(find(joins)->request.job, [this, alive = alive_, joins](Result<SlurmJob> job) {
        Attempt *attempt = *alive ? find(joins) : nullptr;
        if (!attempt || attempt->failed) return;
        bool over = job.ok() ? !job->running || job->restart_count != attempt->request.restart_count
                             : job.status().code() == Code::not_found;
        if (over) return fail(*attempt, Status(Code::stale, "the job has ended"));
        if (!job.ok()) return;
        if (job->nodes.size() > max_nodes_asked) job->nodes.resize(max_nodes_asked);
        connect(joins, std::move(job->nodes));
    });
}

void Joiner::connect(StepKey joins, std::vector<std::string> nodes) {
    Attempt &attempt = *find(joins);
    std::erase_if(nodes, [&](const auto &node) { return node == self_ || attempt.connected.contains(node); });
    if (nodes.empty()) return;
    slurm_.load_addresses(
        std::move(nodes), [this, alive = alive_, joins](Result<std::vector<NodeAddress>> addresses) {
            Attempt *found = *alive && addresses.ok() ? find(joins) : nullptr;
            if (!found || found->failed) return;
            for (const NodeAddress &node : *addresses)
                if (found->connected.size() <= max_nodes_asked && found->connected.insert(node.node).second)
                    peers_.connect_to(node.node, node.address);
        });
}

/// The leader, where one has named it; else all.
void Joiner::ask(StepKey joins) {
    Attempt *attempt = find(joins);
    if (!attempt || attempt->failed) return;
    if (loop_.now() >= attempt->until)
        return fail(*attempt, Status(Code::timeout, "its leader has not taken this node in in time"));
    attempt->timer = loop_.after(ask_again, [this, joins] { ask(joins); });
    bool known = attempt->connected.contains(attempt->leader) && peers_.up(attempt->leader);
    if (attempt->connected.empty()) find_nodes(joins);
    for (const auto &node : attempt->connected)
        if (known ? node == attempt->leader : peers_.up(node)) send(*attempt, node);
    attempt->leader.clear();  // whoever is asked says it again
}

void Joiner::send(const Attempt &attempt, const std::string &node) {
    join::WordT word;
    word.kind = join::Kind::Ask;
    word.companion_job = attempt.request.step.job_id;
    word.companion_step = attempt.request.step.step_id;
    word.step = std::make_unique<proto::StepRegistrationT>(attempt.request.step);
    transport::PeerEnvelope envelope;
    envelope.kind = transport::PeerEnvelope::Kind::join;
    envelope.job_id = attempt.request.job.value();
    envelope.step_id = attempt.request.group_step.value();
    envelope.restart_count = attempt.request.restart_count;
    envelope.payload = encode_join_word(word);
    peers_.send(node, std::move(envelope));
}

void Joiner::on_link(const std::string &node, bool up) {
    if (!up) return;
    for (const auto &[joins, attempt] : attempts_)
        if (!attempt.failed && attempt.connected.contains(node)) send(attempt, node);
}

/// Only from a node that was asked.
void Joiner::on_word(const std::string &node, const transport::PeerEnvelope &envelope) {
    auto word = decode_join_word(envelope.payload);
    Attempt *attempt = word.ok() ? find({JobId(word->companion_job), StepId(word->companion_step)}) : nullptr;
    if (!attempt || attempt->failed || !attempt->connected.contains(node)) return;
    const Request &request = attempt->request;
    if (envelope.job_id != request.job.value() || envelope.step_id != request.group_step.value() ||
        envelope.restart_count != request.restart_count)
        return;
    if (word->kind == join::Kind::Refused) return fail(*attempt, Status(Code::not_found, word->text));
    if (word->kind == join::Kind::Wait && !word->leader.empty()) {
        attempt->leader = word->leader;
        return connect(request.key(), {word->leader});
    }
    if (word->kind != join::Kind::Welcome) return;
    StepKey joins = request.key();
    Status status = welcome_(attempt->request, std::move(*word));
    if (!status.ok()) return fail(*attempt, std::move(status));
    forget(joins);
}

}  // namespace dlrover::daemon
