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

}  // namespace

/// First cause of the failure that the prepared world follows.
const WorkerExit *Member::State::first_exit() const {
    if (!incident || incident->committed || incident->exits.empty()) return nullptr;
    return &incident->exits[first_cause(incident->exits, config.timings.incident_window)];
}

/// With the failure that ended the world in force. The same step saved again is the same state.
Strikes Member::State::count_strikes() const {
    if (!world || !world->restore_step || (complete && complete->step > *world->restore_step)) return {};
    Strikes strikes = world->strikes;
    const WorkerExit *cause = first_exit();
    if (cause == nullptr || !blames_state(*cause)) return strikes;
    bool same = strikes.count > 0 && strikes.signature == cause->signature;
    return {cause->signature, same ? strikes.count + 1 : 1};
}

/// Whether the step that the world in force went on from is suspect, and there may be an older one.
bool Member::State::may_go_back() const {
    return count_strikes().count >= strikes_of_suspect && (config.storage || config.copies > 0) &&
           !bugged(PlantedBug::suspect_trusted);
}

std::vector<Suspect> Member::State::to_pass_over() const {
    if (!world || (preparing && preparing->search == Search::any)) return {};
    std::vector<Suspect> all = world->suspects;
    if (!preparing || preparing->search != Search::further_back) return all;
    TrainStep step = *world->restore_step;
    if (step.value() > 0)
        all.push_back({{world->restore_generation, step}, TrainStep(step.value() - 1), preparing->id});
    return all;
}

/// A writer may be of a version that passes over nothing, and another job of the lineage may have put a newer
/// generation there, of any step.
const CheckpointId *Member::State::stored_choice() const {
    bool any = storage.found && storage.found->newest && !covers(to_pass_over(), *storage.found->newest);
    if (any && preparing->search == Search::further_back)
        any = storage.found->newest->step < *world->restore_step;
    return any ? &*storage.found->newest : nullptr;
}

/// Whether it is known what the prepared world goes on from.
bool Member::State::search_settled() {
    if (!preparing->search)
        preparing->search =
            may_go_back() && world->restore_step > TrainStep(0) ? Search::further_back : Search::trusted;
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
    if (preparing->search != Search::further_back) {
        if (w.restore_step == world->restore_step) w.strikes = strikes;
        return;
    }
    Suspect suspect{{world->restore_generation, *world->restore_step}, *w.restore_step, w.id};
    std::erase_if(w.suspects, [&](const Suspect &s) { return s.back_to >= suspect.back_to; });
    if (w.suspects.size() >= max_suspects) w.suspects.erase(w.suspects.begin());
    w.suspects.push_back(suspect);
    budget.go_back(suspect.back_to);
    Note n;
    n.kind = Note::Kind::warning;
    n.generation = w.id;
    n.step = suspect.id.step;
    n.text = "Step " + std::to_string(suspect.id.step.value()) + ": two failures came back from it" +
             (incident ? " (" + describe_cause(*incident) + ")" : "") + "; going on from step " +
             std::to_string(w.restore_step->value()) + (w.stored_world_size > 0 ? " on storage." : ".");
    out.push_back(std::move(n));
}

}  // namespace dlrover::elastic
