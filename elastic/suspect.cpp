// SPDX-License-Identifier: Apache-2.0
// Steps that failures come back from: after two with the same signature the state itself may be what is
// wrong, and the next world goes on from an older step. It also does where a person says so (dlrover
// rollback).
#include <sys/wait.h>

#include <algorithm>

#include "elastic/member_state.h"

namespace dlrover::elastic {
namespace {

constexpr std::uint32_t strikes_of_suspect = 2;

/// Neither an end from outside nor want of memory tells anything about the state.
bool blames_state(const WorkerExit &e) {
    bool killed =
        WIFSIGNALED(e.wait_status) && (WTERMSIG(e.wait_status) == 9 || WTERMSIG(e.wait_status) == 15);
    return !e.oom && !killed;
}

/// Whether this failure is the one that the group has gone back for, and it has come no further since.
bool comes_again(const World &world, TrainStep step, std::uint64_t signature) {
    if (world.suspects.empty()) return false;
    const Suspect &last = world.suspects.back();
    return !last.by_person && step <= last.id.step && signature == last.signature;
}

}  // namespace

/// First cause of the failure that the prepared world follows.
const WorkerExit *Member::State::first_exit() const {
    if (!incident || incident->committed || incident->exits.empty()) return nullptr;
    return &incident->exits[first_cause(incident->exits, config.timings.incident_window)];
}

/// With the failure that ended the world in force. The same step saved again is the same state, and what a
/// world saves that has gone back is no progress until it is beyond the suspect.
Strikes Member::State::count_strikes() const {
    if (!world || !world->restore_step) return {};
    const WorkerExit *cause = first_exit();
    if (cause != nullptr && !blames_state(*cause)) cause = nullptr;
    std::uint64_t signature = cause != nullptr ? cause->signature : world->strikes.signature;
    bool newer = complete && complete->step > *world->restore_step;
    if (newer && !comes_again(*world, complete->step, signature)) return {};
    if (cause == nullptr) return world->strikes;
    bool same = world->strikes.count > 0 && world->strikes.signature == signature;
    return {signature, same ? std::min(world->strikes.count, strikes_of_suspect - 1) + 1 : 1};
}

/// The oldest step to blame for what has struck. Where the same way led to the same failure again, that is
/// the one that the group had gone back to.
TrainStep Member::State::oldest_to_blame(std::uint64_t signature) const {
    TrainStep from = *world->restore_step;
    return comes_again(*world, from, signature) ? std::min(from, world->suspects.back().back_to) : from;
}

/// Whether the step that the world in force went on from is suspect, and there may be an older one.
bool Member::State::may_go_back() const {
    Strikes strikes = count_strikes();
    return strikes.count >= strikes_of_suspect && oldest_to_blame(strikes.signature) > TrainStep(0) &&
           (config.storage || config.copies > 0) && !bugged(PlantedBug::suspect_trusted);
}

std::vector<Suspect> Member::State::to_pass_over() const {
    if (!world || (preparing && preparing->search == Search::any)) return {};
    std::vector<Suspect> all = world->suspects;
    if (!preparing || preparing->search != Search::further_back) return all;
    CheckpointId from{world->restore_generation, world->restore_step.value_or(preparing->blamed)};
    all.push_back({from, TrainStep(preparing->blamed.value() - 1), preparing->id});
    return all;
}

/// A writer may be of a version that passes over nothing, and another job of the lineage may have put a newer
/// generation there, of any step.
const CheckpointId *Member::State::stored_choice() const {
    bool any = storage.found && storage.found->newest && !covers(to_pass_over(), *storage.found->newest);
    if (any && preparing->search == Search::further_back)
        any = storage.found->newest->step < preparing->blamed;
    return any ? &*storage.found->newest : nullptr;
}

/// None: nobody wants it of the world in force.
const Rollback *Member::State::rollback_wanted() const {
    for (const Peer &p : peers)
        if (world && p.report.rollback && p.report.rollback->from == world->id) return &*p.report.rollback;
    return nullptr;
}

/// A person's word stands above what failures tell.
void Member::State::begin_search() {
    const Rollback *word = rollback_wanted();
    preparing->by_person = word != nullptr;
    preparing->search = word || may_go_back() ? Search::further_back : Search::trusted;
    if (word)
        preparing->blamed = TrainStep(word->to.value() + 1);
    else if (preparing->search == Search::further_back)
        preparing->blamed = oldest_to_blame(count_strikes().signature);
}

/// Whether it is known what the prepared world goes on from.
bool Member::State::search_settled() {
    if (!preparing->search) begin_search();
    while (storage_settled()) {
        bool found = newest_in_memory(preparing->nodes) || stored_choice();
        if (found || !world || preparing->search == Search::any) return found || !ends_for_damage();
        if (!search_on()) return false;
    }
    return false;
}

/// What there was of checkpoints is damaged, and nothing else is left: whether all is to begin anew is for a
/// person to say.
bool Member::State::ends_for_damage() {
    std::optional<std::pair<Damaged, NodeIndex>> last;
    for (std::uint32_t i = 0; i < node_count(); ++i) {
        const auto &damaged = peers[i].report.damaged;
        bool counts = peers[i].accepted && !removed(NodeIndex(i)) && damaged;
        if (counts && (!last || last->first.id < damaged->id)) last = {*damaged, NodeIndex(i)};
    }
    if (!last || bugged(PlantedBug::damage_begins_anew)) return false;
    finish_group(1,
                 "what rank " + std::to_string(last->first.rank.value()) + " has saved of step " +
                     std::to_string(last->first.id.step.value()) + " is damaged in the memory of " +
                     names({last->second}) + ", and no other whole checkpoint is left in memory" +
                     (config.storage ? " or on storage" : "") +
                     ": see whether that node's memory has errors, and start the job again to begin from " +
                     "the beginning; --dlrover-ckpt-dir or --dlrover-redundancy=partner:1 keep another copy");
    return true;
}

/// Nothing is there but what is not to be trusted: better than to begin anew. Where a person wants what is
/// nowhere, failures have the word again. False: the group gives up.
bool Member::State::search_on() {
    bool back = preparing->search == Search::further_back;
    if (back && preparing->by_person && may_go_back()) {
        TrainStep blamed = oldest_to_blame(count_strikes().signature);
        if (blamed > preparing->blamed) {
            preparing->in_vain = TrainStep(preparing->blamed.value() - 1);
            preparing->by_person = false;
            preparing->blamed = blamed;
            return true;
        }
    }
    preparing->search = back && !world->suspects.empty() ? Search::trusted : Search::any;
    if (!back || preparing->by_person || first_exit() == nullptr || !incident->only_further_back) return true;
    incident->giving_up = RestartBudget::Verdict::hopeless;
    preparing.reset();
    return false;
}

/// What the prepared world leaves behind, if it goes further back: the newest step that the group has come
/// to, or that failures have come back from.
std::optional<Suspect> Member::State::left_for(const Strikes &strikes) const {
    bool back = preparing->search == Search::further_back;
    if (!world || (!back && !preparing->by_person)) return std::nullopt;
    Suspect left{{world->restore_generation, world->restore_step.value_or(TrainStep(0))},
                 TrainStep(0),
                 preparing->id,
                 strikes.signature};
    if (!preparing->by_person) {
        if (comes_again(*world, left.id.step, strikes.signature)) left.id = world->suspects.back().id;
        return left;
    }
    left.by_person = true;
    left.signature = 0;
    for (const auto &known : {complete, complete_told})
        if (known && known->step >= left.id.step) left.id = {known->generation, known->step};
    // Where it has come no further, what was begun since.
    if (left.id.step < preparing->blamed) left.id = {world->id, preparing->blamed};
    return left;
}

/// What the worlds before had found suspect, and what this one has gone back from.
void Member::State::note_suspects(World &w, const Strikes &strikes, std::optional<Suspect> left) {
    if (!world) return;
    w.suspects = world->suspects;
    bool back = w.restore_step && left && preparing->search == Search::further_back;
    if (left && left->by_person) tell_rollback(w, left->id);
    if (preparing->in_vain) tell_in_vain(w);
    if (!w.restore_step) return;
    if (!back) {
        bool again = comes_again(w, *w.restore_step, strikes.signature);
        if (again || w.restore_step == world->restore_step) w.strikes = strikes;
        return;
    }
    if (!left->by_person) tell_step_back(w);
    left->back_to = *w.restore_step;
    std::erase_if(w.suspects, [&](const Suspect &s) { return s.back_to >= left->back_to; });
    if (w.suspects.size() >= max_suspects) w.suspects.erase(w.suspects.begin());
    w.suspects.push_back(*left);
    if (left->by_person)
        budget.begin_anew(left->back_to);
    else
        budget.go_back(left->back_to);
}

void Member::State::tell_step_back(const World &w) {
    Note n;
    n.kind = Note::Kind::warning;
    n.generation = w.id;
    n.step = world->restore_step;
    n.text = "Step " + std::to_string(n.step->value()) + ": two failures came back ";
    if (preparing->blamed < *world->restore_step)
        n.text += "although the group had gone back to step " + std::to_string(preparing->blamed.value());
    else
        n.text += "from it";
    n.text += (incident ? " (" + describe_cause(*incident) + ")" : "") + "; going on from step " +
              std::to_string(w.restore_step->value()) + (w.stored_world_size > 0 ? " on storage." : ".");
    out.push_back(std::move(n));
}

void Member::State::tell_rollback(const World &w, const CheckpointId &left) {
    Note n;
    n.kind = Note::Kind::warning;
    n.generation = w.id;
    n.step = left.step;
    std::string wanted = std::to_string(preparing->blamed.value() - 1);
    std::string from = w.restore_step ? "step " + std::to_string(w.restore_step->value()) : "the beginning";
    bool found = preparing->search == Search::further_back;
    n.text = "Rolled back by hand to step " + wanted + ": ";
    if (!found)
        n.text += "it was not found any more, nor an older one; ";
    else if (w.restore_step && w.restore_step->value() + 1 != preparing->blamed.value())
        n.text += "it was not found any more; ";
    n.text += "going on from " + from + (w.stored_world_size > 0 ? " on storage." : ".");
    out.push_back(std::move(n));
}

void Member::State::tell_in_vain(const World &w) {
    Note n;
    n.kind = Note::Kind::warning;
    n.generation = w.id;
    n.step = preparing->in_vain;
    n.text = "Rolled back by hand to step " + std::to_string(n.step->value()) +
             ": it was not found any more, nor an older one.";
    out.push_back(std::move(n));
}

}  // namespace dlrover::elastic
