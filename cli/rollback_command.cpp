// SPDX-License-Identifier: Apache-2.0
#include "cli/rollback_command.h"

#include <algorithm>
#include <chrono>
#include <iostream>
#include <thread>

#include "base/count_of.h"
#include "base/units.h"
#include "ckpt/storage_name.h"
#include "cli/ask.h"
#include "cli/ckpt_places.h"
#include "cli/ckpt_work.h"
#include "cli/confirm.h"
#include "cli/running_job.h"
#include "cli/status_text.h"
#include "cli/table.h"

namespace dlrover::cli {
namespace {

using namespace dlrover::ckpt;
using proto::local::GroupState;
using proto::local::GroupStatusT;
using Clock = std::chrono::steady_clock;

constexpr auto patience = std::chrono::minutes(3);
constexpr std::size_t most_named = 8;  ///< steps that an error names

GenerationId generation_of(const std::unique_ptr<proto::Generation> &g) {
    return g ? GenerationId{Term(g->term()), g->number()} : GenerationId{};
}

std::string lineage_folder(const GroupStatusT &g) {
    if (!g.storage || g.storage->ckpt_dir.empty()) return "";
    return g.storage->ckpt_dir + "/" + escape_file_name(g.lineage);
}

/// "240, 200, 160"
std::string steps_text(const std::vector<CheckpointId> &newest_first) {
    std::string text;
    for (std::size_t i = 0; i < std::min(most_named, newest_first.size()); ++i)
        text += (i == 0 ? "" : ", ") + std::to_string(newest_first[i].step.value());
    return newest_first.size() > most_named ? text + ", …" : text;
}

bool is_in_memory(const GroupStatusT &g, std::uint64_t step) {
    return std::ranges::any_of(g.checkpoints, [&](const auto &c) {
        return c && c->complete && !c->suspect && c->train_step == step;
    });
}

/// What is whole there, and would be gone on from.
Result<CheckpointId> find_stored(const GroupStatusT &g, const std::string &folder, std::uint64_t step) {
    auto listing = list_checkpoints(folder);
    if (!listing) return listing.take_status();
    std::erase_if(listing->complete, [&](const CheckpointId &id) { return is_left_behind(g, id); });
    auto id = newest_of_step(listing->complete, step);
    if (!id) {
        std::string there = listing->complete.empty() ? "holds no checkpoint that it could go on from"
                                                      : "holds steps " + steps_text(listing->complete);
        bool aside = newest_of_step(listing->suspect, step).has_value();
        return Status(Code::not_found, folder + " " + there +
                                           (aside ? "; step " + std::to_string(step) +
                                                        " was set aside (dlrover ckpt rollback --undo)"
                                                  : ""));
    }
    // Newest is what has the highest generation, then step.
    for (const CheckpointId &other : listing->complete)
        if (other.step < id->step && other > *id)
            return Status(Code::not_found, folder + " has step " + std::to_string(step) +
                                               " of an earlier run alone (generation " +
                                               to_string(id->generation) + "), before step " +
                                               std::to_string(other.step.value()) + " was saved");
    CheckpointFolder lineage(folder);
    auto manifest = lineage.read_manifest(*id);
    if (!manifest) return manifest.take_status();
    DLROVER_TRY(lineage.check(*manifest));
    return *id;
}

std::int64_t newest_step(const GroupStatusT &g) {
    std::int64_t newest = -1;
    for (const auto &r : g.ranks)
        if (r) newest = std::max(newest, r->train_step);
    return newest;
}

Result<bool> agreed(const GroupStatusT &g, std::uint64_t step, const StepPlace &place) {
    std::int64_t at = newest_step(g);
    std::string now = at < 0 ? " runs" : " is at step " + std::to_string(at);
    auto yes = confirm("Job " + name_of(g) + " of " + printable(g.user) + now + ". Its " +
                       (g.world_size == 1 ? "rank ends, and begins"
                                          : std::to_string(g.world_size) + " ranks end, and begin") +
                       " again from step " + std::to_string(step) + " (" + printable(place.text()) +
                       "); what was trained since then is given up. Do it?");
    if (yes.ok() && !*yes) std::cerr << "Nothing was changed.\n";
    return yes;
}

/// Another world runs.
Result<std::unique_ptr<GroupStatusT>> await_world(const GroupStatusT &before) {
    auto end = Clock::now() + patience;
    while (true) {
        auto now = look_at(before);
        if (now.ok() && has_ended(**now))
            return Status(Code::unavailable, "job " + name_of(before) + " has ended meanwhile (" +
                                                 printable((*now)->note) + "): see dlrover events " +
                                                 std::to_string(before.job_id));
        bool newer = now.ok() && generation_of((*now)->generation) > generation_of(before.generation);
        if (newer && (*now)->state == GroupState::Running) return now;
        if (Clock::now() >= end)
            return Status(Code::timeout, "job " + name_of(before) + " does not run again yet (" +
                                             (now.ok() ? state_name((*now)->state) : now.status().message()) +
                                             "): see dlrover events " + std::to_string(before.job_id));
        std::this_thread::sleep_for(look_again);
    }
}

/// Of the line that was left: a checkpoint that was on its way may get whole only now.
Status await_writer(const GroupStatusT &now, std::uint64_t step) {
    auto end = Clock::now() + patience;
    while (true) {
        auto seen = look_at(now);
        if (!seen) return seen.take_status();
        const auto *storing = (*seen)->storage ? (*seen)->storage->storing.get() : nullptr;
        bool older = storing && storing->train_step > step &&
                     generation_of(storing->generation) < generation_of(now.generation);
        if (!older) return {};
        if (Clock::now() >= end)
            return Status(Code::timeout,
                          "step " + std::to_string(storing->train_step) + " is still on its way to storage");
        std::this_thread::sleep_for(look_again);
    }
}

/// A later job is not to go on from them: the group itself passes them over already.
Status set_newer_aside(const GroupStatusT &now, const std::string &folder, std::uint64_t step) {
    DLROVER_TRY(await_writer(now, step));
    auto listing = list_checkpoints(folder);
    if (!listing) return listing.take_status();
    std::vector<CheckpointId> newer;
    for (const CheckpointId &id : listing->complete)
        if (id.step.value() > step && id.generation < generation_of(now.generation)) newer.push_back(id);
    if (newer.empty()) return {};
    CheckpointFolder lineage(folder);
    DLROVER_TRY(lineage.set_aside(newer));
    lineage.refresh_hint();
    std::cout << "Set aside in " << printable(folder) << ": step" << (newer.size() == 1 ? " " : "s ")
              << steps_text(newer) << " (dlrover ckpt ls shows them as suspect)\n";
    return {};
}

Status order(const GroupStatusT &g, std::uint64_t step) {
    auto reply = ask_rollback(g, step);
    if (!reply) return reply.take_status();
    using proto::local::RollbackState;
    if (reply->state == RollbackState::Begun) return {};
    if (reply->state == RollbackState::Refused)
        return Status(Code::invalid_argument, "job " + name_of(g) + ": " + printable(reply->text));
    return Status(Code::not_found, "no node of job " + name_of(g) + " takes the word: see dlrover status");
}

}  // namespace

bool is_left_behind(const GroupStatusT &group, const CheckpointId &id) {
    return std::ranges::any_of(group.suspects, [&](const auto &s) {
        return s && id.generation < generation_of(s->since) && id.step.value() > s->back_to;
    });
}

Result<StepPlace> find_step(const GroupStatusT &group, std::uint64_t step) {
    std::string folder = lineage_folder(group);
    Status why(Code::not_found, "the job has no folder on storage (--dlrover-ckpt-dir)");
    if (!folder.empty()) {
        auto id = find_stored(group, folder, step);
        if (id) return StepPlace{folder, *id};
        why = id.take_status();
    }
    if (is_in_memory(group, step)) return StepPlace{};
    return Status(why.code(), "step " + std::to_string(step) +
                                  " is not complete in memory, and not whole on storage: " + why.message());
}

Result<const GroupStatusT *> running_group(const proto::local::StatusReplyT &reply) {
    auto live = live_group(reply, ": dlrover ckpt rollback DIR --step N is for jobs that do not run");
    if (!live) return live;
    if ((*live)->state != GroupState::Running)
        return Status(Code::invalid_argument, "job " + name_of(**live) + " is " + state_name((*live)->state) +
                                                  ": ask again when it runs");
    return live;
}

Status roll_back_job(const proto::local::StatusReplyT &reply, std::uint64_t step, bool yes) {
    auto found = running_group(reply);
    if (!found) return found.take_status();
    const GroupStatusT &group = **found;
    auto place = find_step(group, step);
    if (!place) return place.take_status();
    if (!yes) {
        auto said = agreed(group, step, *place);
        if (!said || !*said) return said.take_status();
    }
    DLROVER_TRY(order(group, step));
    auto now = await_world(group);
    if (!now) return now.take_status();
    bool there = (*now)->restore_step == static_cast<std::int64_t>(step);
    std::string from =
        (*now)->restore_step < 0 ? "the beginning" : "step " + std::to_string((*now)->restore_step);
    if (!there)
        return Status(Code::stale, "job " + name_of(group) + " has gone on from " + from +
                                       " instead: see dlrover events " + std::to_string(group.job_id));
    std::cout << "Job " << name_of(group) << " goes on from " << from << ", with "
              << count_of((*now)->world_size, "rank") << "." << std::endl;
    std::string folder = lineage_folder(group);
    if (folder.empty()) return {};
    if (Status aside = set_newer_aside(**now, folder, step); !aside.ok())
        note("Newer checkpoints of before stay in " + folder + " as they are (" + aside.message() +
             "): a later job would go on from them if it began now.");
    return {};
}

}  // namespace dlrover::cli
