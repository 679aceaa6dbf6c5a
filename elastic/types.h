// SPDX-License-Identifier: Apache-2.0
// Words of the pure part (see docs/design: lineage, group, node, rank, term, generation, world). Everything
// here is plain data.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/ids.h"
#include "base/redundancy.h"

namespace dlrover::elastic {

/// Monotonic time of one node, given by the driver with every input. Never compared between nodes.
using Time = std::chrono::microseconds;
using Duration = std::chrono::microseconds;

/// Published thresholds; the defaults are those of dlrover.toml(5).
struct Timings {
    Duration heartbeat = std::chrono::milliseconds(200);  ///< leader to every member
    Duration leader_silence =
        std::chrono::milliseconds(1000);  ///< a leader without a majority's answer for this long stops acting
    Duration election = std::chrono::milliseconds(
        1200);  ///< silence after which the first candidate stands; > leader_silence
    Duration election_step =
        std::chrono::milliseconds(300);  ///< each later candidate waits this much longer, after the first
                                         ///< eight less (order: node index, batch host last)
    Duration agent_lease = std::chrono::milliseconds(
        5000);  ///< workers stop when nobody with a majority renewed it; > leader_silence
    Duration join =
        std::chrono::seconds(60);  ///< wait for all nodes at the start before beginning with fewer (>= min)
    Duration incident_window =
        std::chrono::milliseconds(500);  ///< reports this close together are one incident
    Duration fence_wait = std::chrono::milliseconds(
        1500);  ///< any side but the leader in office waits this long before it asks Slurm
    Duration without_slurm = std::chrono::seconds(
        60);  ///< a majority that does not hear all nodes goes on so long without Slurm's word
    Duration copy_limit = std::chrono::seconds(
        120);  ///< for the next copy of a complete step; then the group runs without copies for a while
    Duration job_end_notice = std::chrono::minutes(2);  ///< the job's end is told so long before
};

struct NodeSpec {
    std::uint16_t ranks = 1;  ///< how many ranks this node runs when it takes part
    std::string name = {};    ///< for people; empty: "node N"
    /// The job of its own that it is in: Slurm never names it among the nodes of the group's job, and takes
    /// it out by ending that job. None: it is in the group's job.
    std::optional<JobId> companion = {};
    /// The step by which it has joined, where it was moved into the group's job from outside: Slurm names it
    /// among the job's nodes, and takes it out as any of them. None: of the group's own step, or a companion.
    std::optional<StepId> step = {};
    friend bool operator==(const NodeSpec &, const NodeSpec &) = default;
};

/// Reed-Solomon: of each row of up to `data` objects, which are of as many nodes, `parity` other nodes keep
/// one parity each. {0,0}: whole objects are copied.
struct CodeSize {
    std::uint32_t data = 0, parity = 0;
    friend bool operator==(const CodeSize &, const CodeSize &) = default;
};

/// Positions in a group's table, the removed ones too.
inline constexpr std::uint32_t max_table = 16384;
/// Of them those that joined: a promise with their names has to fit into one record.
inline constexpr std::uint32_t max_joined = 1024;

struct GroupConfig {
    NodeIndex self;
    std::vector<NodeSpec> nodes;          ///< by NodeIndex: the step's own, then those that joined
    std::uint32_t step_nodes = 0;         ///< so many of them are the step's own; 0: all
    std::optional<NodeIndex> batch_host;  ///< not in the list, or unknown: none
    std::uint32_t min_nodes = 1, max_nodes = 1, spares = 0, node_unit = 1, max_restarts = 3;
    std::uint32_t slurm_restart_count = 0;
    bool storage = false;       ///< the lineage has a folder for checkpoints
    std::uint32_t copies = 0;   ///< of each object, on other nodes than its own; with `code` its parities
    CodeSize code;              ///< instead of copies
    bool replacements = false;  ///< Slurm is asked for nodes in place of those that are gone
    bool checks = false;        ///< nodes that were lost and come back can be checked, and are
    std::vector<std::string> lost_before = {};  ///< names of nodes that the job's run before has lost
    bool expansion = false;  ///< of these first by expansion of the job, then by jobs of their own
    bool requeues_without_host = false;  ///< a lost batch host has the job requeued
    bool any_size = false;               ///< a world can go on from what one of another size has in memory
    /// > 0: what a leader decides by looking at all nodes it decides at most so often, not with each word of
    /// each node.
    Duration look_pause{0};
    Timings timings;
};

/// A rank's object that a world goes on from, and a node that holds it.
struct ObjectSource {
    Rank rank;
    NodeIndex node;
    friend bool operator==(const ObjectSource &, const ObjectSource &) = default;
};

/// One parity of a row, sealed on a node: of one object of each of these ranks, all of one checkpoint.
/// Counting from 0, the row of the matrix (gf_gen_cauchy1_matrix) is ranks.size() + index, and a rank's
/// column its place in `ranks`.
struct Parity {
    CheckpointId id;
    std::uint32_t world_size = 0;  ///< of the world that saved it
    std::uint32_t index = 0;
    std::vector<Rank> ranks;
    bool to_storage = false;  ///< as in the seal of one of the objects
    bool is_same(const Parity &other) const {
        return std::tie(id, world_size, index, ranks) ==
               std::tie(other.id, other.world_size, other.index, other.ranks);
    }
    friend bool operator==(const Parity &, const Parity &) = default;
};

/// One of those that an object is made of again. unit: below the row's size the object of that rank of it,
/// else the parity with that index more.
struct RebuildPart {
    std::uint32_t unit = 0;
    NodeIndex node;
    friend bool operator==(const RebuildPart &, const RebuildPart &) = default;
};

/// The object of a rank that nobody holds, and who makes it again: from as many parts as the row has ranks.
struct Rebuild {
    Rank rank;
    NodeIndex node;
    std::vector<Rank> row;
    std::vector<RebuildPart> parts;
    friend bool operator==(const Rebuild &, const Rebuild &) = default;
};

/// What that rank has saved as this step does not match its checksums, and was dropped where it was.
struct Damaged {
    CheckpointId id;
    Rank rank;
    friend bool operator==(const Damaged &, const Damaged &) = default;
};

/// A person's word: the world `from` is to give way to one that goes on from the step `to`.
struct Rollback {
    GenerationId from;
    TrainStep to;
    friend bool operator==(const Rollback &, const Rollback &) = default;
};

/// Two failures came back from `id` with the same signature, and the world `since` went on from an older step
/// instead: what was saved before it and after that step is of the suspect's line. Where that did not help,
/// and the group went further back, `id` is still the newest step it had come to.
struct Suspect {
    CheckpointId id;
    TrainStep back_to;
    GenerationId since;
    std::uint64_t signature = 0;  ///< of the failures
    bool by_person = false;       ///< no failures: a person's word (Rollback)
    bool covers(const CheckpointId &other) const { return other.generation < since && other.step > back_to; }
    friend bool operator==(const Suspect &, const Suspect &) = default;
};
inline constexpr std::size_t max_suspects = 8;  ///< of one world: the oldest go
inline bool covers(const std::vector<Suspect> &suspects, const CheckpointId &id) {
    for (const Suspect &s : suspects)
        if (s.covers(id)) return true;
    return false;
}

/// Failures in a row, with the same signature, of worlds that went on from one step.
struct Strikes {
    std::uint64_t signature = 0;
    std::uint32_t count = 0;
    friend bool operator==(const Strikes &, const Strikes &) = default;
};

/// A generation's world, as committed by the leader.
struct World {
    GenerationId id;
    std::vector<NodeIndex> nodes;   ///< group-rank order; ranks are numbered in blocks along it
    std::vector<NodeIndex> spares;  ///< nodes of the group that wait
    std::optional<TrainStep> restore_step;
    std::uint32_t restart_count = 0;
    std::uint16_t master_port = 0;    ///< on nodes[0], chosen by that node
    std::string reason;               ///< why this generation came to be: one sentence
    GenerationId restore_generation;  ///< whose seals of restore_step make up the complete step
    std::uint32_t budget_used = 0;    ///< restarts since the last newly complete step, this one included
    /// > 0: restore_step of restore_generation is read from storage, where so many ranks have saved it.
    std::uint32_t stored_world_size = 0;
    /// Who keeps copies of each node's objects: as many for each of `nodes`, one node's after the other's.
    /// With `groups` parities instead, that with index 0 first.
    std::vector<NodeIndex> partners;
    /// > 0: restore_step is in memory, and so many ranks have saved it, another number than this world's.
    std::uint32_t memory_world_size = 0;
    /// Of restore_step's objects, where they are elsewhere; with memory_world_size of all of them, in order.
    std::vector<ObjectSource> sources;
    /// By place in `nodes`: which coding group it is of. Its members are in the order of their places, and
    /// have the same partners. Empty: whole objects are copied.
    std::vector<std::uint32_t> groups;
    /// Of restore_step's objects those that no node holds. A rebuilding node is that rank's source.
    std::vector<Rebuild> rebuilds;
    std::vector<Suspect> suspects;  ///< in order of `since`
    Strikes strikes;                ///< of worlds before this one, from restore_step
    friend bool operator==(const World &, const World &) = default;
};

/// The nodes that have joined. Each change is one entry more in `added` or `counted`, made by a leader and
/// firm once majorities have it on record; one that is not firm may be replaced by a later leader's. The
/// later term holds, in one term the longer lists.
struct Roster {
    Term term;                       ///< of the leader who wrote it last
    std::vector<NodeSpec> added;     ///< in order of their indices, after the step's own nodes
    std::vector<NodeIndex> counted;  ///< those of them who vote
    std::uint32_t firm_added = 0, firm_counted = 0;  ///< so many of each are known to be firm
    std::size_t version() const { return added.size() + counted.size(); }
    std::size_t firm_version() const { return firm_added + firm_counted; }
    friend bool operator==(const Roster &, const Roster &) = default;
};

/// How many nodes a person wants in the world, and what was given back to Slurm for it. Whoever knows more
/// tells the others: words are counted, the newest holds, of two with one number the larger.
struct Scaling {
    std::uint64_t number = 0;  ///< of words so far; 0: none, as many as can be
    std::uint32_t nodes = 0;
    std::vector<NodeIndex> released;  ///< of the removed nodes those that nobody has lost
    friend bool operator==(const Scaling &, const Scaling &) = default;
};

/// A world that a leader has prepared, and that may be in force although it was not told so.
struct OpenWorld {
    GenerationId id;
    std::vector<NodeIndex> nodes;
    friend bool operator==(const OpenWorld &, const OpenWorld &) = default;
};
/// Of reigns in a row that prepared a world and ended. Older ones are forgotten.
inline constexpr std::size_t max_open_worlds = 16;

/// What a member has promised; stored with the keeper before any message that depends on it is sent.
struct Promise {
    Term term;                           ///< no vote, no message of a lower term is honoured
    std::optional<NodeIndex> voted_for;  ///< in `term`
    GenerationId generation;  ///< highest generation prepared: workers and seals of older ones are refused
    std::vector<NodeIndex> world_nodes;  ///< the nodes of that generation, in group-rank order
    std::vector<OpenWorld> open;         ///< older than `generation`, for who knows of no newer one in force
    std::vector<NodeIndex> removed;      ///< nodes that Slurm has removed from the job
    std::vector<NodeIndex> settled;      ///< the part of `removed` that every other node has on record too
    std::optional<World> world;          ///< newest world known to be in force
    Roster roster;
    Scaling scaling;
    friend bool operator==(const Promise &, const Promise &) = default;
};

/// Whether Slurm starts the job of a group that is over once more.
enum class NextRun : std::uint8_t {
    none,
    comes,   ///< Slurm has taken the job back
    perhaps  ///< Slurm ended it: only its word can tell
};

/// One rank's checkpoint object that is sealed on its node.
struct Seal {
    TrainStep step;
    Rank rank;
    std::uint32_t world_size = 0;
    GenerationId generation;
    bool to_storage = false;  ///< the step is to go to storage once it is complete
    bool is_same(const Seal &other) const {
        return std::tie(step, rank, world_size, generation) ==
               std::tie(other.step, other.rank, other.world_size, other.generation);
    }
    friend bool operator==(const Seal &, const Seal &) = default;
};

/// What an agent tells of a worker that ended by itself.
struct WorkerExit {
    GenerationId generation;
    Rank rank;
    int wait_status = 0;            ///< as of waitpid
    std::int64_t wall_time_us = 0;  ///< epoch; only for the order of causes
    std::uint64_t signature = 0;    ///< equal: same failure at the same place
    bool oom = false;
    std::string error_text;  ///< at most 8 KiB
    friend bool operator==(const WorkerExit &, const WorkerExit &) = default;
};

/// What a world has lost, and gives way to another one for, as far as it is known when that is prepared.
struct Losses {
    static constexpr std::size_t most = 256;  ///< of each kind: what is above that is not named
    GenerationId of;                          ///< the world; {0,0}: there was none
    std::vector<Rank> ranks;                  ///< that ended by themselves
    std::vector<NodeIndex> nodes;
    friend bool operator==(const Losses &, const Losses &) = default;
};

/// The newest step that this rank has not saved, and will not, for want of a slot.
struct Skip {
    Rank rank;
    TrainStep step;
    friend bool operator==(const Skip &, const Skip &) = default;
};

/// Progress of one rank, from its progress page.
struct RankProgress {
    Rank rank;
    std::optional<TrainStep> step;  ///< last finished
    std::uint64_t steps_done = 0;   ///< by this process
    Duration step_sum{0}, save_sum{0};
    std::uint64_t saves_done = 0, saves_skipped = 0;
    Duration since_first_step{0};  ///< 0: no step yet
    friend bool operator==(const RankProgress &, const RankProgress &) = default;
};

}  // namespace dlrover::elastic
