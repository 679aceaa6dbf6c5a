// SPDX-License-Identifier: Apache-2.0
// What people ask: status, events, a rollback, another size. A user has a say in his own groups; root in all.
#include <algorithm>
#include <chrono>

#include "daemon/daemon.h"
#include "daemon/merge.h"

namespace dlrover::daemon {
namespace {

/// What fits a frame of a link, with its envelope.
constexpr std::size_t max_reply_bytes = proto::max_frame_bytes - 4096;
/// Of all groups together: the loop copies and encodes them.
constexpr std::size_t max_events_bytes = proto::max_frame_bytes / 2;

/// The job that other nodes may know more about, 0 for all; none: they are not asked.
std::optional<std::uint32_t> relayed_job(const local::MessageT &message) {
    if (const auto *status = message.body.AsStatusRequest(); status && status->relay) return status->job_id;
    if (const auto *events = message.body.AsEventsRequest(); events && events->relay && events->job_id != 0)
        return events->job_id;
    if (const auto *outcome = message.body.AsOutcomeRequest(); outcome && outcome->relay)
        return outcome->job_id;
    if (const auto *rollback = message.body.AsRollbackRequest(); rollback && rollback->relay)
        return rollback->job_id;
    if (const auto *scale = message.body.AsScaleRequest(); scale && scale->relay) return scale->job_id;
    return std::nullopt;
}

bool is_known(local::MessageT &reply) {
    if (auto *rollback = reply.body.AsRollbackReply())
        return rollback->state != local::RollbackState::Unknown;
    if (auto *scale = reply.body.AsScaleReply()) return scale->state != local::ScaleState::Unknown;
    auto *outcome = reply.body.AsOutcomeReply();
    if (outcome == nullptr || outcome->outcome == local::Outcome::Unknown) return false;
    // Who was not told of losses, because it was lost itself, hears of the end all the same.
    return outcome->outcome != local::Outcome::Over || outcome->lost > 0;
}

void merge_answer(local::MessageT &into, local::MessageT from) {
    if (into.body.type != from.body.type) return;
    if (auto *status = into.body.AsStatusReply())
        merge_status(*status, std::move(*from.body.AsStatusReply()));
    if (auto *events = into.body.AsEventsReply())
        merge_events(*events, std::move(*from.body.AsEventsReply()));
    if (auto *outcome = into.body.AsOutcomeReply()) merge_outcome(*outcome, *from.body.AsOutcomeReply());
    if (auto *rollback = into.body.AsRollbackReply()) merge_rollback(*rollback, *from.body.AsRollbackReply());
    if (auto *scale = into.body.AsScaleReply()) merge_scale(*scale, *from.body.AsScaleReply());
}

}  // namespace

void Daemon::on_query(const Client &from, local::MessageT message) {
    if (from.uid != 0 && !query_budget_.allows(from.uid, loop_.now()))
        return port_->fail(
            from.id, message.id, local::Refusal::NotReady,
            "you ask this node's dlroverd so much that others wait for it: ask again in a second");
    auto begun = std::chrono::steady_clock::now();
    answer(from, std::move(message));
    auto took = std::chrono::steady_clock::now() - begun;
    query_budget_.spend(from.uid, std::chrono::duration_cast<QueryBudget::Time>(took), loop_.now());
}

void Daemon::answer(const Client &from, local::MessageT message) {
    if (message.body.AsNodeCheckRequest()) {
        auto answer = [this, to = from.id, id = message.id](const local::NodeCheckReplyT &reply) {
            port_->answer(to, id, reply);
        };
        if (!inspection_.ask(answer))
            port_->fail(from.id, message.id, local::Refusal::NotReady, "too many ask for this at once");
        return;
    }
    auto reply = answer_query(from.uid, message);
    if (!reply)
        return port_->fail(from.id, message.id, local::Refusal::BadMessage, "this role has no such message");
    auto job = relayed_job(message);
    reply->id = message.id;
    if (!job || is_known(*reply)) return port_->send(from.id, std::move(*reply), {});
    auto merged = std::make_shared<local::MessageT>(std::move(*reply));
    relay_.ask(from.uid, JobId(*job), std::move(message),
               [this, to = from.id, merged](Relay::Answers answers) {
                   for (auto &theirs : answers) merge_answer(*merged, std::move(theirs));
                   if (auto *events = merged->body.AsEventsReply()) put_in_order(*events, max_events_bytes);
                   port_->send(to, std::move(*merged), {});
               },
               {joined_nodes(from.uid, *job), member_nodes(from.uid, *job)});
}

/// Slurm does not name them among the job's.
std::set<std::string> Daemon::joined_nodes(std::uint32_t uid, std::uint32_t job_id) const {
    std::set<std::string> names;
    for (const Group *group : visible(uid, job_id)) {
        const auto &r = group->registration();
        auto joined = static_cast<std::ptrdiff_t>(r.companion_jobs.size());
        if (!group->ended() || group->evicted())
            names.insert(r.node_names.end() - joined, r.node_names.end());
    }
    return names;
}

std::set<std::string> Daemon::member_nodes(std::uint32_t uid, std::uint32_t job_id) const {
    std::set<std::string> names;
    for (const Group *group : visible(uid, job_id))
        names.insert(group->registration().node_names.begin(), group->registration().node_names.end());
    return names;
}

std::optional<local::MessageT> Daemon::answer_query(std::uint32_t uid, const local::MessageT &message) {
    if (const auto *status = message.body.AsStatusRequest())
        return proto::make_local(0, status_for(uid, status->job_id));
    if (const auto *events = message.body.AsEventsRequest())
        return proto::make_local(0, events_for(uid, events->job_id, events->step_id));
    if (const auto *outcome = message.body.AsOutcomeRequest())
        return proto::make_local(0, outcome_for(uid, *outcome));
    if (const auto *rollback = message.body.AsRollbackRequest())
        return proto::make_local(0, roll_back(uid, *rollback));
    if (const auto *scale = message.body.AsScaleRequest())
        return proto::make_local(0, this->scale(uid, *scale));
    return std::nullopt;
}

local::OutcomeReplyT Daemon::outcome_for(std::uint32_t uid, const local::OutcomeRequestT &request) const {
    auto it = groups_.find({JobId(request.job_id), StepId(request.step_id)});
    bool his = it != groups_.end() && (uid == 0 || it->second->uid() == uid) &&
               it->second->registration().restart_count == request.restart_count;
    return his ? it->second->outcome() : local::OutcomeReplyT();
}

/// His own, or root's word; none: it is not here.
Group *Daemon::commanded(std::uint32_t uid, std::uint32_t job_id, std::uint32_t step_id) const {
    auto it = groups_.find({JobId(job_id), StepId(step_id)});
    bool his = it != groups_.end() && (uid == 0 || it->second->uid() == uid);
    return his ? it->second.get() : nullptr;
}

local::RollbackReplyT Daemon::roll_back(std::uint32_t uid, const local::RollbackRequestT &request) {
    Group *group = commanded(uid, request.job_id, request.step_id);
    return group ? group->roll_back(request, uid) : local::RollbackReplyT();
}

local::ScaleReplyT Daemon::scale(std::uint32_t uid, const local::ScaleRequestT &request) {
    Group *group = commanded(uid, request.job_id, request.step_id);
    return group ? group->scale(request, uid) : local::ScaleReplyT();
}

/// A daemon asks for one of its users.
void Daemon::on_peer_request(const std::string &node, const transport::PeerEnvelope &envelope) {
    auto request = proto::decode_local(envelope.payload);
    if (!request) return;
    auto reply = answer_query(envelope.uid, *request);
    if (!reply) return;
    transport::PeerEnvelope out;
    out.kind = transport::PeerEnvelope::Kind::reply;
    out.job_id = envelope.job_id;
    out.id = envelope.id;
    out.payload = proto::encode_local(*reply);
    if (out.payload.size() <= max_reply_bytes) peers_.send(node, std::move(out));
}

std::vector<const Group *> Daemon::visible(std::uint32_t uid, std::uint32_t job_id) const {
    std::vector<const Group *> out;
    for (const auto &[key, group] : groups_)
        if ((uid == 0 || group->uid() == uid) && (job_id == 0 || key.first.value() == job_id))
            out.push_back(group.get());
    return out;
}

local::StatusReplyT Daemon::status_for(std::uint32_t uid, std::uint32_t job_id) const {
    local::StatusReplyT reply;
    for (const Group *group : visible(uid, job_id)) reply.groups.push_back(group->status());
    return reply;
}

local::EventsReplyT Daemon::events_for(std::uint32_t uid, std::uint32_t job_id, std::uint32_t step_id) const {
    constexpr std::uint32_t all_steps = ~std::uint32_t{0};
    local::EventsReplyT reply;
    auto groups = visible(uid, job_id);
    std::size_t room = max_events_bytes;
    std::ranges::reverse(groups);  // where there is not room for all: the newest
    for (const Group *group : groups)
        if (step_id == all_steps || group->step().value() == step_id)
            reply.groups.push_back(group->events(room));
    std::ranges::reverse(reply.groups);
    return reply;
}

}  // namespace dlrover::daemon
