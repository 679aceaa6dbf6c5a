// SPDX-License-Identifier: Apache-2.0
// Steps that failures come back from: after two with the same signature the state itself may be what is
// wrong, and the next world goes on from an older step.
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
    return step <= last.id.step && signature == last.signature;
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
    CheckpointId from{world->restore_generation, *world->restore_step};
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

void Member::State::begin_search() {
    preparing->search = may_go_back() ? Search::further_back : Search::trusted;
    if (preparing->search == Search::further_back)
        preparing->blamed = oldest_to_blame(count_strikes().signature);
}

/// Whether it is known what the prepared world goes on from.
bool Member::State::search_settled() {
    if (!preparing->search) begin_search();
    while (storage_settled()) {
        bool found = newest_in_memory(preparing->nodes) || stored_choice();
        if (found || !world || preparing->search == Search::any) return true;
        if (!search_on()) return false;
    }
    return false;
}

/// Nothing is there but what is not to be trusted: better than to begin anew. False: the group gives up.
bool Member::State::search_on() {
    bool back = preparing->search == Search::further_back;
    preparing->search = back && !world->suspects.empty() ? Search::trusted : Search::any;
    if (!back || first_exit() == nullptr || !incident->only_further_back) return true;
    incident->giving_up = RestartBudget::Verdict::hopeless;
    preparing.reset();
    return false;
}

/// What the worlds before had found suspect, and what this one has gone back from.
void Member::State::note_suspects(World &w, const Strikes &strikes) {
    if (!world) return;
    w.suspects = world->suspects;
    if (!w.restore_step) return;
    if (preparing->search != Search::further_back) {
        bool again = comes_again(w, *w.restore_step, strikes.signature);
        if (again || w.restore_step == world->restore_step) w.strikes = strikes;
        return;
    }
    tell_step_back(w);
    Suspect suspect{
        {world->restore_generation, *world->restore_step}, *w.restore_step, w.id, strikes.signature};
    if (comes_again(*world, suspect.id.step, strikes.signature)) suspect.id = world->suspects.back().id;
    std::erase_if(w.suspects, [&](const Suspect &s) { return s.back_to >= suspect.back_to; });
    if (w.suspects.size() >= max_suspects) w.suspects.erase(w.suspects.begin());
    w.suspects.push_back(suspect);
    budget.go_back(suspect.back_to);
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

}  // namespace dlrover::elastic
