// SPDX-License-Identifier: Apache-2.0
// What the members of a group tell each other. proto/peer.fbs carries exactly these; daemon/message_codec.h
// translates.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "elastic/goodput.h"
#include "elastic/types.h"

namespace dlrover::elastic {

/// What a node knows of itself; in every answer to the leader, so that a new leader can rebuild all from the
/// answers.
struct NodeReport {
    bool ready = false;
    GenerationId running;  ///< workers of this generation run here; {0,0}: none
    GenerationId stopped;  ///< nothing runs in the name of this or an older generation any more
    std::vector<Seal> seals;
    std::vector<Rank> finished;     ///< ranks of `running` that ended with 0
    std::vector<WorkerExit> exits;  ///< of `running`
    std::vector<RankProgress> progress;
    int signal = 0;                         ///< meant for the job; 0: none
    std::optional<CheckpointId> asked;      ///< StorageAsked: the newest known here
    bool exposed = false;                   ///< its objects can not be copied to its partners now
    std::optional<CheckpointId> safe;       ///< the newest that a leader of this world has called safe
    std::vector<Parity> parities;           ///< that are whole
    GenerationId knows;                     ///< the newest world that it has on record
    std::optional<Rollback> rollback = {};  ///< said here, and not done yet
    std::optional<Damaged> damaged = {};  ///< here, and the group has no newer step, nor gone on from another
    /// Rises with each report of the node, whichever of its daemons makes it; 0: that one does not count.
    /// What an older one says of objects may be dropped since.
    std::uint64_t number = 0;
    std::optional<CheckpointId> durable = {};  ///< StepDurable: the newest known here
    std::vector<Skip> skips = {};              ///< of `running`; at most one of each rank
    Scaling scaling = {};                      ///< the newest on record here
    Duration without_slurm{0};                 ///< Timings::without_slurm there; 0: not told
    friend bool operator==(const NodeReport &, const NodeReport &) = default;
};

struct VoteRequest {
    Term term;
    GenerationId last_generation;
    std::vector<NodeIndex> removed;  ///< nodes that Slurm has removed from the job
    friend bool operator==(const VoteRequest &, const VoteRequest &) = default;
};
struct VoteReply {
    Term term;
    bool granted = false;
    Promise promise;
    NodeReport report;
    std::optional<Duration> whole_ago = {};  ///< as in Heartbeat
    friend bool operator==(const VoteReply &, const VoteReply &) = default;
};
struct Heartbeat {
    Term term;
    std::uint64_t sequence = 0;
    std::optional<World> world;              ///< in force; left out where the member runs it
    std::optional<TrainStep> complete_step;  ///< newest
    GenerationId complete_generation;
    Goodput goodput;
    std::uint64_t acked = 0;              ///< newest sequence that this member has answered
    bool acting = false;                  ///< a majority has answered within leader_silence
    std::vector<NodeIndex> removed;       ///< nodes that Slurm has removed from the job
    bool settled = false;                 ///< every node not in `removed` has it on record
    std::optional<TrainStep> void_below;  ///< StepsVoid
    GenerationId void_generation;
    std::optional<CheckpointId> asked;                 ///< StorageAsked
    std::optional<CheckpointId> protect, safe, freed;  ///< Protect, MemberView::safe, StepFreed
    /// The newest that is safe by what the holders of this world have; `safe` may be one that comes near.
    std::optional<CheckpointId> covered;
    GenerationId of_world;         ///< in which these three were said; {0,0}: none is in force
    std::optional<Roster> roster;  ///< left out where the member has it on record
    /// So long ago, or later, every node that is not removed has heard a leader; none: that is not known.
    std::optional<Duration> whole_ago = {};
    /// What the world goes on from, where a part of it was damaged and is nowhere any more: StepsVoid, of
    /// this step alone.
    std::optional<CheckpointId> lost = {};
    std::optional<CheckpointId> durable = {};  ///< StepDurable
    Scaling scaling = {};                      ///< the newest on record
    std::optional<Duration> job_ends_in = {};  ///< JobEndsSoon; none: it is not near, or not known
    friend bool operator==(const Heartbeat &, const Heartbeat &) = default;
};
struct HeartbeatReply {
    Term term;
    std::uint64_t sequence = 0;
    NodeReport report;
    friend bool operator==(const HeartbeatReply &, const HeartbeatReply &) = default;
};
/// First phase of a new generation: stop the older ones, store the promise, answer.
struct Prepare {
    Term term;
    GenerationId generation;
    std::vector<NodeIndex> world_nodes;
    std::vector<NodeIndex> removed;
    std::string reason;
    Losses losses = {};
    std::vector<OpenWorld> open = {};
    friend bool operator==(const Prepare &, const Prepare &) = default;
};
struct PrepareReply {
    Term term;
    GenerationId generation;
    bool accepted = false;
    std::uint16_t port = 0;  ///< of the node that hosts rank 0
    NodeReport report;
    /// In force by what is known here, and newer than the one that the leader knows: that one's leader was
    /// cut off before others heard of it.
    std::optional<World> world = {};
    friend bool operator==(const PrepareReply &, const PrepareReply &) = default;
};
/// Second phase: in force.
struct Commit {
    Term term;
    World world;
    friend bool operator==(const Commit &, const Commit &) = default;
};
/// Something the leader should know at once, between heartbeats.
struct Report {
    Term term;
    NodeReport report;
    friend bool operator==(const Report &, const Report &) = default;
};
struct Finish {
    Term term;
    int exit_code = 0;
    std::string message;
    Goodput goodput;
    NextRun next_run = NextRun::none;
    std::vector<NodeIndex> excluded = {};  ///< from that run, where the group has had the job requeued
    friend bool operator==(const Finish &, const Finish &) = default;
};

/// Leader to a node: exchange bytes with `partner`, and work before that. Said again until it is answered.
struct CheckOrder {
    Term term;
    std::uint64_t check = 0;  ///< counts this leader's
    NodeIndex partner;
    bool work = false;  ///< arithmetic
    bool gpus = false;  ///< its GPUs' too
    friend bool operator==(const CheckOrder &, const CheckOrder &) = default;
};
struct CheckReport {
    Term term;
    std::uint64_t check = 0;
    bool ok = false;
    Duration work{0};  ///< 0: not asked for
    Duration exchange{0};
    std::string text;    ///< what went wrong, else what is to be said of the work
    bool unfit = false;  ///< whoever says this is, without a doubt: a partner has no part in it
    friend bool operator==(const CheckReport &, const CheckReport &) = default;
};
/// Whether a node that a leader does not hear answers others: from the leader to one that it hears, and from
/// there to the node.
struct Reach {
    Term term;
    NodeIndex node, asker;
    friend bool operator==(const Reach &, const Reach &) = default;
};
/// It does: back the same way.
struct Reached {
    Term term;
    NodeIndex node, asker;
    friend bool operator==(const Reached &, const Reached &) = default;
};
/// Leader to a node that has joined and is not counted: it will not be.
struct Dismissal {
    Term term;
    std::string text;
    friend bool operator==(const Dismissal &, const Dismissal &) = default;
};

using Message = std::variant<VoteRequest, VoteReply, Heartbeat, HeartbeatReply, Prepare, PrepareReply, Commit,
                             Report, Finish, CheckOrder, CheckReport, Dismissal, Reach, Reached>;

}  // namespace dlrover::elastic
