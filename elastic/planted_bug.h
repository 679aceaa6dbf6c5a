// SPDX-License-Identifier: Apache-2.0
// One broken rule at a time, for the simulator, which must find it. The product always passes none.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace dlrover::elastic {

enum class PlantedBug : std::uint8_t {
    none,
    reply_before_store,         ///< answers leave before the promise is on record
    term_not_stored,            ///< a vote's term and candidate are not recorded
    no_majority_of_previous,    ///< a generation commits without the set before it
    no_majority_of_new,         ///< a generation commits when rank 0's node alone has answered
    leader_ignores_silence,     ///< a leader acts on without a majority's answers
    votes_while_leader_lives,   ///< a vote within the leader's lease
    agent_ignores_lease,        ///< workers run on without a lease (in the simulated agent)
    lease_not_waited_for,       ///< a world starts beside one that nobody has stopped
    batch_host_leads,           ///< the batch host stands like any other node
    fence_without_reread,       ///< another side asks Slurm without reading the job first
    minority_fences,            ///< the smaller side removes the larger one
    go_on_without_slurm,        ///< half of the nodes go on while Slurm is silent
    asks_slurm_twice,           ///< an unknown outcome is asked again unread
    accept_old_seal,            ///< seals of a stopped generation count
    accept_old_exit,            ///< a worker of an old generation is listened to
    restore_mixes_generations,  ///< a complete step is put together from what several generations sealed
    restore_older_step,         ///< the oldest complete step, not the newest
    generation_reuse,           ///< a second attempt has the first one's number
    void_too_early,             ///< a step is given up while a rank may still seal it
    storage_terms_ignored,      ///< a run's terms do not stand above those on storage
    storage_passed_over,        ///< a world without a step in memory begins anew
    asked_too_early,            ///< a step is wanted on storage before every rank has sealed it
    asked_not_told,             ///< a follower does not hear that a step is wanted on storage
    safe_too_early,             ///< a step counts as safe when some of its objects have their copies
    freed_before_safe,          ///< the safe step's slots are free before a newer one is safe
    sources_left_out,           ///< a node that took another's place is not told where its objects are
    copy_counted_early,         ///< a copy counts before it is there (in the simulated node)
    kept_passed_over,           ///< a requeued job's first world does not look at what its nodes have kept
    added_counts_at_once,       ///< a node that joins is counted before majorities have it on record
    added_forgotten_by_new_leader,  ///< a new leader does not take over what its voters have on record
    unchecked_let_in,               ///< a node that was lost and comes back is counted before its check
    lost_before_trusted,            ///< a node that the job's run before has lost is used unchecked
    other_size_passed_over,         ///< a world does not go on from what one of another size has in memory
    other_size_freed_early,   ///< what another size's world has saved is free before a newer step is safe
    newcomer_called_absent,   ///< what Slurm said before a node was moved into the job counts against it
    suspect_trusted,          ///< a world goes on from the step that failures come back from
    rebuild_from_other_step,  ///< parities of other steps count for the one to go on from
    parity_called_whole_too_early,  ///< when half of its row is in it (in the simulated node)
    folded_twice,                   ///< what is offered again is folded in again (in the simulated node)
    host_not_told,                  ///< Slurm does not say that the group goes on without its batch host
    goes_on_for_ever,               ///< a majority goes on without Slurm's word until it comes
    minority_requeues,              ///< the smaller side does not wait until the larger one has stopped
    waits_for_slurm,                ///< a majority does not go on without Slurm's word
    age_of_whole_not_told,          ///< a new leader begins to count anew how long all were not heard
    half_leaves_behind,             ///< half of the nodes leave the other half behind with marks
    mark_not_read_back,             ///< a mark that Slurm has taken counts, also when it is gone again
    damage_begins_anew,             ///< where the only checkpoint is damaged all begins anew
    dropped_counts_on,              ///< what a node has dropped is one of its step's copies still
    counted_without_world,          ///< a node that joins is counted before it knows the world in force
    scale_not_passed_on,            ///< how many nodes are wanted only the leader who was told knows
    majority_released,              ///< so many nodes are given back at once that they could choose a leader
    released_early,    ///< a node is given back before the smaller world has a safe step of its own
    switches_ignored,  ///< copies are kept wherever there is room
    witness_unheard,   ///< a leader takes no notice of others that reach a node
};

inline constexpr std::array<std::string_view, 55> planted_bug_names = {
    "none",
    "reply_before_store",
    "term_not_stored",
    "no_majority_of_previous",
    "no_majority_of_new",
    "leader_ignores_silence",
    "votes_while_leader_lives",
    "agent_ignores_lease",
    "lease_not_waited_for",
    "batch_host_leads",
    "fence_without_reread",
    "minority_fences",
    "go_on_without_slurm",
    "asks_slurm_twice",
    "accept_old_seal",
    "accept_old_exit",
    "restore_mixes_generations",
    "restore_older_step",
    "generation_reuse",
    "void_too_early",
    "storage_terms_ignored",
    "storage_passed_over",
    "asked_too_early",
    "asked_not_told",
    "safe_too_early",
    "freed_before_safe",
    "sources_left_out",
    "copy_counted_early",
    "kept_passed_over",
    "added_counts_at_once",
    "added_forgotten_by_new_leader",
    "unchecked_let_in",
    "lost_before_trusted",
    "other_size_passed_over",
    "other_size_freed_early",
    "newcomer_called_absent",
    "suspect_trusted",
    "rebuild_from_other_step",
    "parity_called_whole_too_early",
    "folded_twice",
    "host_not_told",
    "goes_on_for_ever",
    "minority_requeues",
    "waits_for_slurm",
    "age_of_whole_not_told",
    "half_leaves_behind",
    "mark_not_read_back",
    "damage_begins_anew",
    "dropped_counts_on",
    "counted_without_world",
    "scale_not_passed_on",
    "majority_released",
    "released_early",
    "switches_ignored",
    "witness_unheard",
};

}  // namespace dlrover::elastic
