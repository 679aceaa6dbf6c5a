// SPDX-License-Identifier: Apache-2.0
// A person wants the group to go on from an older step (dlrover rollback).
#include "common/log.h"
#include "daemon/group.h"

namespace dlrover::daemon {
namespace {

/// What a world is told as a signed number, and one more.
constexpr std::uint64_t largest_step = static_cast<std::uint64_t>(INT64_MAX) - 1;

}  // namespace

/// Why not; empty: nothing is in the way.
std::string Group::rollback_refusal(const local::RollbackRequestT &request) const {
    if (over()) return "it has ended";
    auto view = member_ ? member_->view() : elastic::MemberView{};
    if (!view.world || !world_) return "its ranks have not begun yet";
    if (view.recovering || view.ended) return "it is recovering, or about to end: ask again when it runs";
    if (!request.generation || from_proto(*request.generation) != view.generation)
        return "its ranks have begun anew since you asked: look at dlrover status";
    if (request.train_step > largest_step) return "there is no such training step";
    // Without copies the slots of older steps are free.
    bool newest = complete_ == TrainStep(request.train_step);
    if (registration().options->ckpt_dir.empty() && !has_copies() && !newest)
        return "it has no folder (--dlrover-ckpt-dir) and no copies in memory: no older step is kept";
    return {};
}

local::RollbackReplyT Group::roll_back(const local::RollbackRequestT &request, std::uint32_t uid) {
    local::RollbackReplyT reply;
    if (record_.evicted || is_kept()) return reply;
    reply.state = local::RollbackState::Refused;
    reply.text = rollback_refusal(request);
    if (!reply.text.empty()) return reply;
    log::info({job(), step()},
              "user " + std::to_string(uid) + " wants step " + std::to_string(request.train_step) + " back");
    feed(elastic::LocalRollback{{world_->id, TrainStep(request.train_step)}});
    reply.state = local::RollbackState::Begun;
    return reply;
}

/// Its program may have made the step up; whether an older one is kept the world's beginning finds out.
std::string Group::restart_refusal(std::int64_t step) const {
    if (step < 0 && !complete_) return "all ranks have saved no step yet";
    if (step < 0 || (complete_ && static_cast<std::uint64_t>(step) <= complete_->value())) return {};
    std::string newest = complete_ ? ": the newest is " + std::to_string(complete_->value()) : "";
    return "all ranks have saved no step " + std::to_string(step) + " yet" + newest;
}

/// Refusals are told in the time line too: PMIx has no place for words.
local::PmixRestartReplyT Group::pmix_restart(const local::PmixRestartRequestT &request) {
    local::RollbackRequestT wanted;
    if (world_) wanted.generation = to_proto_ptr(world_->id);
    bool newest = request.step < 0;
    wanted.train_step = static_cast<std::uint64_t>(newest ? 0 : request.step);
    if (newest && complete_) wanted.train_step = complete_->value();
    local::PmixRestartReplyT reply;
    reply.state = local::RollbackState::Refused;
    reply.text = restart_refusal(request.step);
    if (reply.text.empty()) reply.text = rollback_refusal(wanted);
    if (!reply.text.empty()) {
        add_event(proto::EventKind::Warning,
                  "The program's request to begin again is refused: " + reply.text + ".");
        return reply;
    }
    log::info({job(), step()}, "a rank wants step " + std::to_string(wanted.train_step) + " back");
    feed(elastic::LocalRollback{{world_->id, TrainStep(wanted.train_step)}});
    reply.state = local::RollbackState::Begun;
    return reply;
}

}  // namespace dlrover::daemon
