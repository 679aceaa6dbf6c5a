// SPDX-License-Identifier: Apache-2.0
// One node's part in its group: elections, generations, restarts, the end. Pure: inputs with times in,
// actions out; the daemon and the simulator drive the same code.
#pragma once

#include <memory>
#include <variant>
#include <vector>

#include "elastic/goodput.h"
#include "elastic/messages.h"
#include "elastic/planted_bug.h"
#include "elastic/types.h"

namespace dlrover::elastic {

// ---- inputs -------------------------------------------------------------------------------------

/// This node's agents are all connected (or one is gone). After a daemon's restart agents connect again and
/// say what they run: running is the generation of their workers, {0,0} when none.
struct LocalReady {
    bool ready = true;
    GenerationId running;
};
struct LocalExit {
    WorkerExit exit;
};
/// The worker of this rank ended with status 0 and is not going to be started again in this generation.
struct LocalFinished {
    GenerationId generation;
    Rank rank;
};
/// No process of this generation or an older one is left on this node.
struct LocalStopped {
    GenerationId generation;
};
/// Accepted by the daemon only while seal.generation is the promised one. Copies for other nodes too, and
/// what the world in force goes on from.
struct LocalSealed {
    Seal seal;
};
/// This rank's save was skipped: of that step no object comes any more.
struct LocalSkipped {
    GenerationId generation;
    Skip skip;
};
/// Every object of a row is folded into this parity. Like LocalSealed.
struct LocalParity {
    Parity parity;
};
/// The objects and parities that this node holds (after a restart of the daemon, or when one is gone
/// otherwise than by StepFreed or StepsVoid; replaces what was known).
struct LocalObjects {
    std::vector<Seal> seals;
    std::vector<Parity> parities = {};
};
/// One of them was found damaged, and is none of them any more: LocalObjects follows.
struct LocalDamaged {
    Damaged damaged;
};
struct LocalProgress {
    std::vector<RankProgress> ranks;
};
/// Whether this node's objects get to its partners: they do until it is said, in each world anew.
struct LocalProtection {
    bool works = true;
};
/// An agent got a signal meant for the job.
struct LocalSignal {
    int signal = 0;
};
/// The Store action with this number is on record; port: the free port asked for by it (0: none asked for).
struct Stored {
    std::uint64_t sequence = 0;
    std::uint16_t port = 0;
};
struct PeerMessage {
    NodeIndex from;
    Message message;
};
/// The control link to this peer broke (true) or came up (false): a sign, not a verdict.
struct PeerLink {
    NodeIndex peer;
    bool broken = false;
};
struct SlurmAnswer {
    std::uint64_t request = 0;  ///< AskSlurm::request
    /// unable: as it is, Slurm can not take nodes out of this job, not now nor later
    /// (AskSlurm::What::shrink_to).
    enum class Result { done, refused, unreachable, unable } result = Result::done;
    std::vector<NodeIndex> job_nodes;  ///< for read_job: the job's present nodes
    bool job_running = true;           ///< for read_job
    /// Why; a sentence's end. Unreachable: empty where nobody answers.
    std::string text = {};
    std::vector<NodeIndex> ended = {};  ///< for read_job: joined nodes whose own job is known to be over
    std::vector<NodeIndex> left = {};   ///< for read_job: those of AskSlurm::What::leave_behind
};
/// A node asks to join: its daemon is who it says, and Slurm says that its step is the owner's. Again each
/// second until it is in NodesAdded. Only a leader in office heeds it.
struct NodeOffered {
    std::string name;
    std::uint16_t ranks = 1;
    std::optional<JobId> companion = {};  ///< as in NodeSpec
    std::optional<StepId> step = {};      ///< as in NodeSpec
};
/// Jobs of nodes that Slurm was asked for (AskSlurm::What::add_nodes), wait or run, and are not in NodesAdded
/// yet (nodes that the job is expanded by are not among them): on the leader's node after each answer to it,
/// and whenever the number changes; after the table has grown, not before.
struct NodesComing {
    std::uint32_t count = 0;
};
/// The answer to LookAtStorage with this number.
struct LocalStorage {
    std::uint64_t request = 0;
    bool ok = false;                     ///< the folder can be read and written
    std::optional<CheckpointId> newest;  ///< that is whole
    std::uint32_t world_size = 0;        ///< of `newest`
    Term next_term;                      ///< this run's terms are to be above it
    std::string text;                    ///< what is wrong, or was passed over: a sentence
};
/// How RunCheck with this number ended.
struct LocalCheck {
    std::uint64_t run = 0;
    bool ok = false;
    Duration work{0}, exchange{0};
    std::string text;    ///< what went wrong, else what is to be said of the work
    bool unfit = false;  ///< this node has failed by itself: it has miscalculated, say
};
/// This checkpoint is whole on storage: said where its last part was put there.
struct LocalDurable {
    CheckpointId id;
};
/// A person's word, said at this node. Not heeded where `from` is not in force any more.
struct LocalRollback {
    Rollback rollback;
};
/// A person's word, said at this node: so many nodes are wanted in the world, within the group's limits.
struct LocalScale {
    std::uint32_t nodes = 0;
};
/// By NodeIndex: what the nodes fail together with (a switch): equal numbers are one domain. Of nodes beyond
/// it nothing is known, which is one domain, 0. Heeded when partners are chosen next; who has one keeps it.
struct LocalDomains {
    std::vector<std::uint32_t> of;
};
/// When Slurm ends the job, by the clock of step(); none: it does not, or does not say. On the leader's node,
/// each time that it was asked.
struct LocalJobEnd {
    std::optional<Time> at;
};
struct Tick {};

using Input =
    std::variant<Tick, LocalReady, LocalExit, LocalFinished, LocalStopped, LocalSealed, LocalParity,
                 LocalObjects, LocalProgress, LocalProtection, LocalSignal, Stored, PeerMessage, PeerLink,
                 SlurmAnswer, LocalStorage, NodeOffered, NodesComing, LocalCheck, LocalRollback, LocalDamaged,
                 LocalDurable, LocalSkipped, LocalScale, LocalDomains, LocalJobEnd>;

// ---- actions: to be done in order ----------------------------------------------------------------

struct SendMessage {
    NodeIndex to;
    Message message;
    std::vector<NodeIndex> also = {};  ///< the same to these, after it
};
/// Put on record with the keeper, then feed Stored{sequence}. want_port: this node hosts rank 0 of the
/// prepared generation; find a free port first.
struct Store {
    std::uint64_t sequence = 0;
    Promise promise;
    bool want_port = false;
};
/// A generation is in force: tell the agents of this node (each generation once; again after agents have
/// connected anew).
struct Publish {
    World world;
};
/// Agents: end workers of `generation` and older; seals of these are refused from now on.
struct StopWorkers {
    GenerationId generation;
    std::string reason;
    Losses losses = {};
};
/// Agents' lease runs anew from now.
struct RenewLease {};
/// Every rank of that world has sealed `step` (also on other nodes).
struct StepComplete {
    TrainStep step;
    GenerationId generation;
};
/// Slots of steps older than this complete one are free for reuse, unless somebody reads them; but for
/// `keep`, the newest step that is safe. Follows StepComplete where no copies are kept on other nodes.
struct StepFreed {
    CheckpointId id;
    std::optional<CheckpointId> keep;
    bool frees(const CheckpointId &other) const {
        return (other.step < id.step || other.generation < id.generation) && other != keep;
    }
};
/// This node's objects of this complete step are to be copied to its partners; of another one no more. The
/// last word counts; a new leader may repeat it.
struct Protect {
    CheckpointId id;
};
/// Objects of `generation` after the newest complete step and before `below` can never be complete: their
/// slots are free for reuse.
struct StepsVoid {
    TrainStep below;
    GenerationId generation;
    std::optional<TrainStep> complete;  ///< newest complete step: it and what is older is not meant
};
/// This step is complete, and one of its ranks asked that it go to storage. Once for each by every daemon;
/// where newer ones were asked for meanwhile only the newest.
struct StorageAsked {
    CheckpointId id;
};
/// This step is safe by what the holders of the world in force have. Each time when a newer one is, in each
/// world anew.
struct StepSafe {
    CheckpointId id;
};
/// This step is on storage. Each time when a newer one is that is not suspect.
struct StepDurable {
    CheckpointId id;
};
/// Slurm ends the job soon (its time limit): once on each node. None: that was put off.
struct JobEndsSoon {
    std::optional<Duration> in;
};
/// For who sits before the terminal.
struct Tell {
    std::string text;
};
struct AskSlurm {
    std::uint64_t request = 0;
    enum class What {
        read_job,
        shrink_to,
        requeue,
        add_nodes,      ///< done: as many as wanted wait or run (NodesComing); refused: text says why
        expand_job,     ///< the same of nodes moved into the job: done: each has asked to join; text: may be
                        ///< empty
        drop_coming,    ///< none of those is needed any more, whichever leader has asked for them
        end_companion,  ///< end these nodes' own jobs. done: they are over, or gone
        leave_behind,   ///< Slurm keeps them in the job: it is to say that the group goes on without them
    } what = What::read_job;
    /// shrink_to: the survivors; requeue: the nodes to exclude, those of jobs of their own too. Refused where
    /// this node is no longer in the job, or left behind.
    std::vector<NodeIndex> nodes;
    /// add_nodes, expand_job: so many are to be on their way in all, those included that already are; so a
    /// question that is asked twice, by two leaders too, brings no more.
    std::uint32_t count = 0;
};
/// The nodes that have joined so far, in order of their indices after the step's own: on record, for good.
/// Extend the table before any message of theirs is fed. Each time when there is one more, and when a member
/// starts that was given fewer.
struct NodesAdded {
    std::vector<NodeSpec> added;
};
/// Which checkpoint on storage does a run go on from? Feed LocalStorage when it is known; a newer question
/// takes the place of an older one. Only where GroupConfig::storage.
struct LookAtStorage {
    std::uint64_t request = 0;
    std::vector<Suspect> passed_over = {};  ///< what these cover is not meant
};
/// Work for a moment, if told to, and exchange bytes with that node; feed LocalCheck within seconds. The last
/// word counts.
struct RunCheck {
    std::uint64_t run = 0;
    NodeIndex partner;
    bool work = false, gpus = false;
};
/// A node's check has failed: it is not let in again. its_fault: nobody else's.
struct NodeUnfit {
    NodeIndex node;
    std::string text;
    bool its_fault = false;
};
/// The group is over: agents end with exit_code. message: one sentence of ours, empty when all went well.
struct End {
    int exit_code = 0;
    std::string message;
    Goodput goodput;
    NextRun next_run = NextRun::none;      ///< unless `none` the objects may be needed again
    bool evicted = false;                  ///< this node alone: the others go on, and are not to hear of it
    bool dismissed = false;                ///< it was never let in: its user is to hear `message`
    std::vector<NodeIndex> excluded = {};  ///< from the next run, where the group has had the job requeued
};
/// A line of the time line. The driver adds the time and this node's name.
struct Note {
    enum class Kind : std::uint16_t {
        none,
        group_started,
        node_ready,
        world_published,
        worker_failed,
        worker_finished,
        incident_opened,
        incident_closed,
        restore_planned,
        checkpoint_complete,
        leader_elected,
        leader_lost,
        gave_up,
        group_finished,
        warning,
        node_joined
    } kind = Kind::none;
    GenerationId generation;
    std::optional<NodeIndex> node;
    std::optional<Rank> rank;
    std::optional<TrainStep> step;
    std::optional<Duration> duration;
    std::string text;
};

using Action = std::variant<SendMessage, Store, Publish, StopWorkers, RenewLease, StepComplete, StepFreed,
                            Protect, StepsVoid, StorageAsked, StepSafe, StepDurable, AskSlurm, NodesAdded,
                            LookAtStorage, RunCheck, NodeUnfit, End, Note, Tell, JobEndsSoon>;

// ---- the machine -----------------------------------------------------------------------------------

/// What `dlrover status` shows.
struct MemberView {
    std::optional<NodeIndex> leader;
    Term term;
    GenerationId generation;  ///< in force on this node
    std::optional<World> world;
    bool recovering = false;  ///< a newer generation is being prepared
    bool ended = false;
    std::uint32_t restarts_left = 0, restarts = 0;
    std::uint32_t ready_nodes = 0;  ///< known to the leader; 0 elsewhere
    std::vector<TrainStep> complete_steps;
    /// Newest; none: what was safe, and is kept, is not any more, since nodes that held it are gone or have
    /// dropped a part of it.
    std::optional<CheckpointId> safe;
    /// Newest that is safe by what the holders of the world in force have: of it nothing else is needed.
    std::optional<CheckpointId> covered;
    std::optional<CheckpointId> protecting;  ///< newest Protect
    std::optional<CheckpointId> durable;     ///< newest StepDurable
    Goodput goodput;                         ///< as the leader last told
    Time goodput_at{0};                      ///< its wall time ends here
    Roster roster;
    std::optional<Damaged> damaged;  ///< NodeReport::damaged: for the next daemon's LocalDamaged
    std::uint32_t wanted_nodes = 0;  ///< by a person's word; 0: there is none
    std::string not_yet;             ///< why the world has another number, as this leader knows; else empty
};

/// Single-threaded. Deterministic: equal inputs at equal times give equal actions.
class Member {
  public:
    /// `promise`: what the keeper had on record, if this is not the first daemon. A node that joins (self is
    /// at or after step_nodes) has none: it must not have been a member under this index before.
    Member(GroupConfig config, std::optional<Promise> promise, Time now, PlantedBug bug = PlantedBug::none);
    ~Member();
    Member(Member &&) noexcept;
    Member &operator=(Member &&) noexcept;

    /// Before the first step: what a former daemon of this node knew to be added up until `at`.
    void resume(const Goodput &goodput, Time at);

    /// The actions to do, in order.
    std::vector<Action> step(Time now, const Input &input);
    /// Feed Tick at this time at the latest.
    Time next_deadline() const;
    MemberView view() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace dlrover::elastic
