// SPDX-License-Identifier: Apache-2.0
// The daemon's part in nodes that join: steps of companion jobs, or of the group's own job, which become
// members of groups that run on other nodes.
#include <algorithm>

#include "common/log.h"
#include "daemon/daemon.h"
#include "daemon/registration.h"
#include "daemon/wall_clock.h"

namespace dlrover::daemon {
namespace {

/// Of all groups here: the keeper's memory is for more important things.
constexpr std::size_t max_launch_bytes_here = 16u << 20;
constexpr std::uint32_t max_workers_here = 1024;

local::Refusal refusal_for(const Status &status) {
    bool away = status.code() == Code::unavailable || status.code() == Code::timeout;
    return away ? local::Refusal::NotReady : local::Refusal::NotPermitted;
}

/// The index of this node in a group that it has joined by that job.
std::optional<std::uint32_t> find_self(const proto::StepRegistrationT &step, const std::string &node,
                                       StepKey joins) {
    std::size_t joined = step.companion_jobs.size(), all = step.node_names.size();
    for (std::size_t i = 0; i < joined && joined < all; ++i)
        if (joined_by(step, i) == joins && step.node_names[all - joined + i] == node)
            return static_cast<std::uint32_t>(all - joined + i);
    return std::nullopt;
}

}  // namespace

/// Without it lost nodes are not replaced; the step runs all the same.
Daemon::Launch Daemon::usable(Launch launch) const {
    if (!launch || !check_launch(*launch).ok()) return nullptr;
    std::size_t kept = 0;
    for (const auto &[key, group] : groups_) kept += group->launch_bytes();
    return kept < max_launch_bytes_here ? std::move(launch) : nullptr;
}

void Daemon::on_register_joiner(ConnectionId to, std::uint32_t id, proto::StepRegistrationT step,
                                Launch launch, const proto::JoinTargetT &target) {
    auto request = std::make_shared<Joiner::Request>();
    request->step = std::move(step);
    request->launch = std::move(launch);
    JobId own(request->step.job_id);
    slurm_.load_step(own, StepId(request->step.step_id),
                     [this, alive = alive_, to, id, request, target](Result<SlurmStep> slurm) {
                         if (!*alive) return;
                         Status checked =
                             slurm.ok() ? check_with_slurm(request->step, *slurm) : slurm.take_status();
                         if (checked.ok())
                             return accept_joiner(to, id, std::move(*request), slurm->job, target);
                         port_->fail(to, id, refusal_for(checked), checked.message());
                     });
}

void Daemon::accept_joiner(ConnectionId to, std::uint32_t id, Joiner::Request request, const SlurmJob &own,
                           const proto::JoinTargetT &target) {
    auto shared = std::make_shared<Joiner::Request>(std::move(request));
    slurm_.load_job(
        JobId(target.job_id), [this, alive = alive_, to, id, shared, own, target](Result<SlurmJob> job) {
            if (!*alive) return;
            // As for somebody else's job: a stranger learns nothing.
            if (!job.ok() && job.status().code() == Code::not_found) job = SlurmJob{.uid = ~shared->step.uid};
            Status status = job.ok() ? check_target(shared->step, own, target, *job) : job.take_status();
            shorten(shared->step);
            shared->job = JobId(target.job_id);
            shared->group_step = StepId(target.step_id);
            shared->restart_count = job.ok() ? job->restart_count : 0;
            if (status.ok()) status = make_way({shared->job, shared->group_step});
            if (status.ok()) status = joiner_.begin(std::move(*shared));
            if (status.ok()) return port_->done(to, id);
            log::warning({JobId(shared->step.job_id), StepId(shared->step.step_id)},
                         "the step can not join: " + log::one_line(status.message()));
            port_->fail(to, id, refusal_for(status), status.message());
        });
}

/// What this node was in that step before must not speak any more: by its name it would be the new one.
Status Daemon::make_way(Key key) {
    auto known = groups_.find(key);
    if (known == groups_.end()) return {};
    if (!known->second->ended())
        return Status(Code::invalid_argument, "this node is a part of that step already");
    forget(key);
    return {};
}

Status Daemon::take_in(Joiner::Request &request, join::WordT word) {
    proto::StepRegistrationT &step = *word.step;
    auto index = find_self(step, options_.node, request.key());
    bool ours = step.job_id == request.job.value() && step.step_id == request.group_step.value() &&
                step.restart_count == request.restart_count && step.uid == request.step.uid;
    if (!index || !ours) return Status(Code::corrupt, "the group has named another node");
    step.node_index = *index;
    step.stepd_pid = request.step.stepd_pid;
    DLROVER_TRY(check_registration(step, options_.node));
    if (std::uint32_t{word.workers} * step.tasks_per_node[*index] > max_workers_here)
        return Status(Code::corrupt, "the group has too many ranks on a node");
    Key key(request.job, request.group_step), own = request.key();
    DLROVER_TRY(make_way(key));
    DLROVER_TRY(room_for(step.uid));
    records::GroupRecordT record;
    record.lineage = word.lineage;
    record.user = word.user;
    record.workers = word.workers;
    record.companion_job = request.step.job_id;
    record.join_step = request.step.step_id;
    record.registration = std::move(word.step);
    record.charge_job = charges_jobs();
    record.started_us = wall_clock_us();
    auto group = std::make_unique<Group>(services(), std::move(record));
    group->keep_launch(usable(std::move(request.launch)));
    group->save([this, alive = alive_, key](Status stored) {
        if (!*alive || stored.ok()) return;
        forget(key);
        log::error("a step is not on record: " + stored.message());
    });
    log::info({key.first, key.second}, "joined, lineage " + log::one_line(group->lineage()));
    group->find_addresses();
    groups_[key] = std::move(group);
    aliases_[own] = key;
    return {};
}

void Daemon::on_join_word(const std::string &node, const transport::PeerEnvelope &envelope) {
    auto word = decode_join_word(envelope.payload);
    if (!word) return;
    if (word->kind != join::Kind::Ask) return joiner_.on_word(node, envelope);
    auto group = groups_.find({JobId(envelope.job_id), StepId(envelope.step_id)});
    if (group == groups_.end() || group->second->registration().restart_count != envelope.restart_count)
        return;
    group->second->on_newcomer(node, *word);
}

}  // namespace dlrover::daemon
