// SPDX-License-Identifier: Apache-2.0
// The inside of Member, shared by its files: member.cpp (dispatch), local.cpp (inputs of this node),
// follower.cpp, election.cpp, leader.cpp, generation.cpp (prepare and commit), incident.cpp, fence.cpp (lost
// nodes and Slurm), stored.cpp (checkpoints on storage), suspect.cpp (steps that failures come back
// from), kept.cpp (memory of the job's run before),
// roster.cpp (nodes that join), scaling.cpp (how many are wanted), checking.cpp (nodes that were lost and
// come back), absence.cpp (nodes that are waited for at the start).
#pragma once

#include <array>
#include <functional>
#include <map>
#include <set>

#include "elastic/coding.h"
#include "elastic/goodput_meter.h"
#include "elastic/member.h"
#include "elastic/node_check.h"
#include "elastic/node_list.h"
#include "elastic/restart_budget.h"
#include "elastic/seal_tally.h"
#include "elastic/skip_tally.h"

namespace dlrover::elastic {

/// What a candidate or leader knows of one node.
struct Peer {
    bool granted = false;           ///< its vote, in this term
    bool joined = false;            ///< answered in this reign
    bool accepted = false;          ///< the generation that is being prepared
    std::uint64_t acked = 0;        ///< newest heartbeat it answered
    Time alive_at{0};               ///< when that heartbeat was sent
    GenerationId told;              ///< the newest Commit sent since its link came up
    std::optional<Time> odd_since;  ///< should run the world, and says it does not
    bool setting_told = false;      ///< that it waits for another time than this node
    NodeReport report;
    /// Made before one that has come already; one without a number is of a daemon that does not count.
    bool is_late(const NodeReport &other) const { return other.number != 0 && other.number < report.number; }
};

/// What others say of a node that this leader does not hear: elastic/witness.cpp.
struct OthersWord {
    std::vector<NodeIndex> asked;      ///< at last
    std::optional<Time> at;            ///< when one of them said that the node answers it
    std::optional<NodeIndex> by = {};  ///< which
};

/// Which steps a world may go on from: those before a step that has become suspect; those that are not of a
/// suspect's line; all. The next one where there is none.
enum class Search : std::uint8_t { further_back, trusted, any };

struct Preparation {
    GenerationId id;
    std::vector<NodeIndex> nodes, spares;
    std::uint16_t port = 0;
    std::uint32_t restart_count = 0, budget_used = 0;
    std::string reason;
    Losses losses;
    Time since{0};
    std::optional<Search> search;      ///< since all answers that it needs are there
    TrainStep blamed;                  ///< while searching further back: before this one
    bool by_person = false;            ///< it is a person's word to go further back
    std::optional<TrainStep> in_vain;  ///< wanted by a person, and neither it nor an older one is there
    bool from_storage = false;         ///< of another size, which memory is of no use to
};

/// From a failure to the first step after it.
struct Incident {
    Time opened{0};
    std::optional<Time> committed;
    GenerationId generation;  ///< that failed
    std::vector<WorkerExit> exits;
    std::vector<NodeIndex> exit_nodes;  ///< of each exit
    std::set<Rank> ended;               ///< the ranks of `exits`
    void add(const WorkerExit &exit, NodeIndex node) {
        exits.push_back(exit);
        exit_nodes.push_back(node);
        ended.insert(exit.rank);
    }
    std::string cause;
    bool only_further_back = false;  ///< from the step that the world before went on from it is hopeless
    std::optional<RestartBudget::Verdict> giving_up;  ///< the first cause is awaited until the window closes
};

/// The talk with Slurm; at most one question at a time.
struct SlurmTalk {
    std::uint64_t next_request = 1;
    std::optional<std::uint64_t> pending;
    Time asked_at{0};  ///< `pending`
    AskSlurm::What what = AskSlurm::What::read_job;
    std::vector<NodeIndex> asked;   ///< what an accepted shrink removes
    bool unsure = false;            ///< an earlier question may have been carried out: read first
    std::uint32_t known_nodes = 0;  ///< in the table when it was asked: the answer says nothing of others
    bool read_fresh = false;        ///< the job was read and nothing was asked since
    bool down = false;
    std::string told;  ///< that it is waited for, and why: not again for the same nodes
    Time retry_at{0};
    std::optional<Time> reached;    ///< slurm_reached()
    Time word_at{Time::min() / 2};  ///< when this leader last asked for the job, and it ran
    std::uint32_t refusals = 0;
    std::vector<NodeIndex> marked;  ///< Slurm was told that the group goes on without them
    bool unable = false;            ///< it can not take nodes out of this job
    Duration mark_pause{0};         ///< after marks that it has refused
    bool requeue_wanted = false;
    std::string requeue_why;
    std::vector<NodeIndex> excluded;  ///< from the job's next run, as Slurm was asked last
    bool keeps_job = false;           ///< Slurm has refused a requeue for the batch host
    bool inherited = false;           ///< a leader before may have asked, and Slurm may hear of it only now
};

/// What is on storage, as this node's writer says. Holds until a world is installed: then it may have
/// changed.
struct StorageTalk {
    std::uint64_t last_request = 0;
    bool pending = false;
    std::optional<LocalStorage> found;
    std::vector<Suspect> passed_over;  ///< as it was asked
    Time retry_at{0};
    /// Also an answer that is still on its way.
    void forget() {
        found.reset();
        pending = false;
    }
};

/// A leader's part of Protect: one complete step at a time gets its copies.
struct Protection {
    std::optional<CheckpointId> target, safe;
    std::optional<CheckpointId> kept;  ///< `safe`, or what comes nearest to it
    Time since{0};                     ///< of the target's newest copy, or of having given up
    std::size_t held = 0;              ///< places where the target's objects are
    /// Complete steps are freed without copies.
    enum class GivenUp : std::uint8_t { no, exposed, late } given_up = GivenUp::no;
    std::uint32_t late_times = 0;  ///< in a row
    /// A node has dropped an object of `safe`, `kept` or `target`, or of the newest complete step.
    bool dropped = false;
    bool hurt = false;  ///< of `target`, since it was chosen
};

/// A leader's part of the roster, and of the nodes that Slurm is asked for.
struct Joining {
    std::vector<NodeOffered> offers;   ///< wait for their turn
    bool open = false;                 ///< what was written last is not on record with a majority yet
    std::uint64_t stored_by = 0;       ///< the Store of it
    std::vector<std::string> refused;  ///< names: told once
    std::optional<std::uint64_t> request;
    std::uint32_t asked = 0;              ///< by `request`; 0: none is needed any more
    bool expands = false;                 ///< `request` is for nodes of the job itself
    bool looked = false;                  ///< after what leaders before have moved into the job
    bool by_job = false;                  ///< that was refused: the next ones come as jobs of their own
    std::optional<std::uint32_t> coming;  ///< none: unknown
    Time retry_at{0}, drop_at{0};         ///< not before: for more nodes, for fewer
    Duration pause{0};
    std::string told;             ///< why there are none
    std::string told_unexpanded;  ///< why the job is not expanded
};

/// A leader's checks of nodes that come back, one at a time.
struct Checking {
    std::optional<NodeIndex> last;  ///< that was checked, or is
    std::optional<NodeIndex> subject;
    std::vector<CheckPair> pairs;
    std::size_t at = 0;  ///< which of them meets now
    CheckBook book;
    std::string text;          ///< what went wrong
    std::uint64_t number = 0;  ///< of the newest order
    Time began{0}, ordered_at{0}, sent_at{0}, not_before{0};
    Duration limit{0};           ///< for the newest order's answer
    std::uint32_t attempts = 0;  ///< that told nothing
    std::vector<NodeIndex> passed;
    std::map<NodeIndex, std::string> story;  ///< of those
    std::map<NodeIndex, Time> dismissed;
};

/// What a leader has told this node to check.
struct Checked {
    std::uint64_t run = 0;
    bool done = false;
    CheckReport report;
};

/// When a world may become a larger one, or a smaller one.
struct Growing {
    bool moment = false;  ///< a step of this world has just become complete; safe, where there are copies
    bool stored = false;  ///< it is on storage, and a world of another size can go on from there
    std::optional<Time> since;  ///< more nodes stand by
    Time not_before{0};
    Duration pause{0};
};

/// Nodes that a leader gives back to Slurm.
struct Releasing {
    std::vector<NodeIndex> nodes;  ///< Slurm was asked, and may have done it
    bool held = false;             ///< it does not do it: not asked again
};

/// The pause after the first question for nodes; each further one is twice as long.
inline constexpr Duration first_node_pause = std::chrono::minutes(1);

/// Heartbeats sent: when was sequence n sent? News send many in a moment, so it goes back by time (2.5 s at
/// least) and not by their number: an answer that takes longer than a hundred heartbeats is one.
class SentTimes {
  public:
    /// In the order of their numbers.
    void add(std::uint64_t sequence, Time at) {
        newest_ = sequence;
        if (count_ > 0 && at - entry(count_ - 1).second < spacing) return;
        ring_[count_++ % ring_.size()] = {sequence, at};
    }
    /// Then, or less than `spacing` before; none: never, or too long ago.
    std::optional<Time> find(std::uint64_t sequence) const {
        if (sequence == 0 || sequence > newest_) return std::nullopt;
        for (std::size_t back = 1; back <= std::min(count_, ring_.size()); ++back)
            if (entry(count_ - back).first <= sequence) return entry(count_ - back).second;
        return std::nullopt;
    }

  private:
    static constexpr Duration spacing = std::chrono::milliseconds(10);
    const std::pair<std::uint64_t, Time> &entry(std::size_t i) const { return ring_[i % ring_.size()]; }

    std::array<std::pair<std::uint64_t, Time>, 256> ring_{};
    std::size_t count_ = 0;
    std::uint64_t newest_ = 0;
};

enum class Role : std::uint8_t { follower, candidate, leader };

struct Member::State {
    GroupConfig config;
    PlantedBug bug = PlantedBug::none;
    Time now{0}, born{0};
    bool reborn = false;      ///< an earlier daemon has left a promise
    GenerationId born_world;  ///< in force at that time: its agents know it, and say what became of it
    std::vector<Action> out;

    Promise promise;
    NodeReport local;
    std::optional<World> published;  ///< told to the agents by this daemon
    std::optional<SealTally::Complete> complete_told;
    std::optional<CheckpointId> protect_told, freed_told;
    std::optional<CheckpointId> covered;                          ///< as the leader of this world says
    std::optional<CheckpointId> safe_told;                        ///< newest StepSafe of this world
    std::optional<std::pair<GenerationId, TrainStep>> void_told;  ///< newest StepsVoid
    std::optional<TrainStep> void_after;                          ///< StepsVoid::complete of it
    std::optional<CheckpointId> lost_told;                        ///< Heartbeat::lost, of this world
    GenerationId idle_told;                                       ///< warn_of_idle_savers
    Goodput goodput;
    Time goodput_at{0};            ///< its wall time ends here
    std::optional<Finish> finish;  ///< the group is over
    std::uint32_t finish_rounds = 0;
    bool not_let_in = false;
    bool evicted = false;  ///< ended because this node left the job: the others go on
    std::pair<std::vector<NodeIndex>, std::vector<NodeIndex>> absent_told;  ///< as absent()
    std::optional<Time> absent_told_at;

    Role role = Role::follower;
    std::optional<NodeIndex> leader;
    std::optional<NodeIndex> followed;  ///< the newest leader but this node
    Time leader_contact{0}, election_deadline{0}, peer_contact{0};
    Time prepared_at{Time::min() / 2};    ///< promise.generation
    Time counted_on_at{Time::min() / 2};  ///< the leader counts on this node: since this answer at least
    Time whole_at{Time::min() / 2};       ///< Heartbeat::whole_ago
    bool leader_seen = false;

    // Candidate and leader.
    std::vector<Peer> peers;
    std::uint32_t all_ranks = 0;  ///< of all nodes of the table
    std::vector<Time> heard_at;   ///< by node: its newest message
    std::vector<bool> met;        ///< by node of the step: it has said something
    std::vector<Time> linked_at;  ///< by node: its link came up (a handshake is a sign of life)
    std::vector<std::optional<Time>> broken_at;  ///< by node: since when its link is down
    std::vector<OthersWord> reached;             ///< by node
    Time began{0}, stood{0}, next_heartbeat{0};
    Time next_look{0};                  ///< leader: after what is lost
    Time looked_at{Time::min() / 2};    ///< at all nodes, where GroupConfig::look_pause
    bool look_due = false;              ///< and since then somebody has said something
    std::optional<Time> majority_lost;  ///< candidate: no majority since then
    std::optional<Time> held_since;     ///< leader: at each look since then a node was lost, and one doubtful
    std::uint64_t sequence = 0, removal_sequence = 0;
    std::uint64_t told_from = 0;   ///< the first heartbeat after the newest Commit
    std::uint64_t heard_from = 0;  ///< answers to this heartbeat or a later one tell of all that is held
    std::uint64_t roster_sequence =
        0;                         ///< the first heartbeat with the roster as it is now; 0: none has joined
    GenerationId generation_seen;  ///< highest one that a voter has promised
    /// The highest that voters have promised to an earlier leader, and the worlds up to it that may be in
    /// force, although nobody here was told.
    std::pair<GenerationId, std::vector<OpenWorld>> prepared_before;
    Term term_seen;
    SentTimes sent;
    SentTimes replied;  ///< follower: when each heartbeat of this leader was answered

    // Leader.
    std::optional<World> world;  ///< in force, as this node knows; also on followers
    std::optional<Preparation> preparing;
    std::optional<Incident> incident;
    std::optional<std::string> awaiting;  ///< why a new world is needed, while too few nodes are ready
    Time awaiting_since{0};
    std::optional<Time> spares_since;  ///< the first world waits for them
    SealTally tally;
    RowBook rows;  ///< of the world that `tally` is for
    std::optional<SealTally::Complete> complete;
    std::optional<CheckpointId> asked_since;  ///< newest that a report has asked for, since recount()
    RestartBudget budget{0};
    std::optional<GoodputMeter> meter;
    StorageTalk storage;
    Protection protection;
    Goodput::Counted baseline;  ///< of the world that this reign took over: added up before it
    Goodput::Counted counted;   ///< by the meter
    SkipTally skipped;          ///< of the world in force, in this reign
    SlurmTalk slurm;
    Joining joining;
    Growing growing;
    Releasing releasing;
    Checking checking;
    std::optional<Checked> checked;  ///< also on followers
    std::string failed_check;        ///< why this node, as a leader, has found itself unfit; else empty
    std::optional<Time> resigned_at;
    Duration resign_pause{0};  ///< after `resigned_at`, where it leads again

    // Stores that are not on record yet, and what waits for them.
    struct Held {
        std::uint64_t sequence;
        NodeIndex to;
        Message message;
    };
    std::uint64_t store_issued = 0, store_done = 0, port_sequence = 0;
    std::uint16_t port = 0;
    GenerationId port_generation;
    std::vector<Held> held;

    std::vector<std::uint32_t> domains;  ///< LocalDomains
    std::optional<Time> job_end;         ///< LocalJobEnd
    bool job_end_told = false;           ///< JobEndsSoon, and it still is so

    // member.cpp
    void on_message(NodeIndex from, const Message &message);
    void on_stored(const Stored &m);
    void on_link(NodeIndex peer, bool broken);
    void persist(bool want_port = false);
    void send(NodeIndex to, Message message);
    void send_all(const std::vector<NodeIndex> &to, Message message);
    std::vector<NodeIndex> all_others() const;
    std::vector<NodeIndex> others_left() const;
    void send_when_stored(NodeIndex to, Message message);
    void deliver(NodeIndex to, Message message);
    void note(Note::Kind kind, std::string text);
    void end(Finish f);
    bool is_self(NodeIndex node) const { return node == config.self; }
    void start_table();
    std::uint32_t node_count() const { return static_cast<std::uint32_t>(config.nodes.size()); }
    bool removed(NodeIndex node) const { return contains(promise.removed, node); }
    /// Nodes whose majority decides; removals count once every survivor has them on record.
    std::size_t electorate() const;
    bool is_majority(std::size_t nodes) const { return nodes * 2 > electorate(); }
    /// Of so many electors, also if another leader counts the newest node already, which is among them or
    /// not.
    bool is_majority(std::size_t nodes, const std::function<bool(NodeIndex)> &has) const;
    std::uint32_t world_size(const std::vector<NodeIndex> &nodes) const;
    std::optional<NodeIndex> node_of(const World &w, Rank rank) const;
    bool bugged(PlantedBug b) const { return bug == b; }

    // local.cpp
    void on_ready(const LocalReady &m);
    void on_exit(const WorkerExit &exit);
    void on_finished(const LocalFinished &m);
    bool may_be_of_promised(const CheckpointId &id) const;
    void on_sealed(const Seal &seal);
    static std::optional<TrainStep> last_kept(const std::optional<SealTally::Complete> &newest,
                                              const GenerationId &generation);
    bool is_void_already(const Seal &seal) const;
    void on_skipped(const LocalSkipped &m);
    void on_parity(const Parity &parity);
    void on_objects(const LocalObjects &m);
    void on_protection(bool works);
    void on_rollback(const Rollback &word);
    void on_damaged(const Damaged &damaged);
    void on_durable(const CheckpointId &id);
    std::optional<Duration> near_job_end() const;
    void job_end_here(const std::optional<Duration> &in);
    void on_signal(int signal);
    void drop_freed_seals(const StepFreed &freed);
    const NodeReport &next_report();
    void tell_leader();

    // follower.cpp
    bool accept_leader(NodeIndex from, Term term);
    void on_heartbeat(NodeIndex from, const Heartbeat &m);
    void on_prepare(NodeIndex from, const Prepare &m);
    void on_commit(NodeIndex from, const Commit &m);
    bool is_outdated(const Finish &m) const;
    void on_finish(NodeIndex from, const Finish &m);
    void stop_before(const GenerationId &id, const std::string &reason, const Losses &losses = {});
    void take_world(const World &w, bool counted_on);
    void install(const World &w, bool counted_on);
    void publish(const World &w);
    void merge_removed(const std::vector<NodeIndex> &nodes, bool settled);
    void complete_here(TrainStep step, const GenerationId &generation);
    void void_here(TrainStep below, const GenerationId &generation, std::optional<TrainStep> newest);
    void lost_here(const CheckpointId &id);
    void asked_here(const std::optional<CheckpointId> &id);
    void safe_here(const std::optional<CheckpointId> &id);
    bool durable_here(const std::optional<CheckpointId> &id);
    void hear_leader();

    // absence.cpp
    bool tells_of_absent() const;
    std::pair<std::vector<NodeIndex>, std::vector<NodeIndex>> absent() const;
    std::string some_names(std::vector<NodeIndex> nodes) const;
    void tell_absent();

    // election.cpp
    bool may_lead() const;
    Duration place_delay() const;
    Duration retry_delay() const;
    void reset_election();
    void on_tick_follower();
    void on_tick_candidate();
    void stand();
    void ask_votes();
    void on_vote_request(NodeIndex from, const VoteRequest &m);
    bool grant(NodeIndex from, const VoteRequest &m);
    void on_vote_reply(NodeIndex from, const VoteReply &m);
    void count_votes();
    void step_down(const std::string &why);

    // leader.cpp
    void begin_reign();
    void base_on_world();
    void resume_budget();
    void on_tick_leader();
    bool look_around();
    bool looks_later();
    void look_over();
    bool acting() const;
    bool may_act() const { return acting() && has_word(); }
    void send_heartbeats();
    void send_heartbeat(NodeIndex to, bool is_acting, bool takes_part);
    void send_heartbeat_alone(NodeIndex to, bool is_acting);
    bool lacks_prepare(NodeIndex node, bool is_acting) const;
    void on_heartbeat_reply(NodeIndex from, const HeartbeatReply &m);
    void on_report(NodeIndex from, const NodeReport &report);
    void compare_setting(NodeIndex node);
    bool answers(NodeIndex node) const;
    void settle_removed();
    void consider();
    void await_word();
    void consider_start();
    bool waits_for_spares(std::size_t nodes);
    void consider_running();
    bool in_force(const CheckpointId &id) const;
    void count_ranks();
    /// What that node holds, as far as `counts` says of its checkpoint.
    template <typename Counts>
    void tally_report(SealTally &to, NodeIndex node, const NodeReport &report, Counts counts) const {
        for (const Seal &s : report.seals)
            if (counts(CheckpointId{s.generation, s.step})) to.add(s, all_ranks, node);
        for (const Parity &p : report.parities)
            if (counts(p.id)) to.add(p, all_ranks, node, rows.has(p));
    }
    void forget_dropped(NodeIndex from, const NodeReport &before, const NodeReport &report);
    void on_dropped(const CheckpointId &id);
    void count_seals(NodeIndex from, const NodeReport &report);
    bool count_complete();
    bool count_asked(const std::optional<CheckpointId> &asked);
    void tally_seals(NodeIndex from, const NodeReport &report);
    void recount();
    bool count_void();
    bool knows_all_holders(const GenerationId &generation) const;
    bool count_lost();
    void consider_progress(const NodeReport &report);
    std::vector<Rank> idle_savers() const;
    void warn_of_idle_savers(const NodeReport &report);
    void add_up(bool ended);
    bool all_finished() const;
    void finish_group(int code, std::string message, NextRun next_run = NextRun::none,
                      std::vector<NodeIndex> excluded = {});
    void send_finish();

    // generation.cpp
    void propose(std::string reason, bool counts);
    Losses losses() const;
    Prepare prepare_word() const {
        return {promise.term,      preparing->id,     preparing->nodes, promise.removed,
                preparing->reason, preparing->losses, open_worlds()};
    }
    void take_prepared(const Promise &given);
    std::vector<OpenWorld> open_worlds() const;
    std::vector<NodeIndex> choose_nodes() const;
    std::vector<NodeIndex> first_nodes() const;
    void await_nodes(std::string reason);
    void on_prepare_reply(NodeIndex from, const PrepareReply &m);
    void go_on_from(const World &newer);
    Time lease_end() const;
    bool may_commit() const;
    bool set_accepted(const std::vector<NodeIndex> &nodes) const;
    void try_commit();
    SealTally new_tally(std::uint32_t holders) const {
        return SealTally(holders, config.code.data + config.code.parity);
    }
    template <typename Counts>
    SealTally tally_reported(std::uint32_t holders, Counts counts) const;
    template <typename Counts>
    SealTally tally_joined(Counts counts) const;
    /// The newest complete step that the world of these nodes can go on from in memory.
    std::optional<SealTally::Complete> newest_in_memory(const std::vector<NodeIndex> &nodes) const;
    void tally_other_steps();
    World decide_world();
    void commit();
    void note_world(const World &w, Duration took);

    // kept.cpp
    bool begins_again() const;
    bool all_heard() const;
    std::optional<CheckpointId> newest_left(std::uint32_t size) const;
    bool has_all(NodeIndex node, const CheckpointId &id, std::uint32_t first_rank) const;
    std::vector<NodeIndex> keep_places(const std::vector<NodeIndex> &ready, std::size_t size) const;
    std::optional<SealTally::Complete> newest_kept(const std::vector<NodeIndex> &nodes) const;
    void note_unused(const World &w);

    // incident.cpp
    void on_exits(NodeIndex from, const NodeReport &report);
    void open_incident(std::string cause);
    void decide_restart();
    void give_up();
    std::string describe_cause(const Incident &i) const;
    void close_incident(Duration since_first_step);

    // protection.cpp
    PlacedNode placed(NodeIndex node) const;
    std::vector<NodeIndex> choose_partners(const World &w) const;
    bool may_hold_copies(NodeIndex spare) const;
    std::vector<PlacedNode> usable_spares(const World &w) const;
    void choose_holders(World &w) const;
    NodeIndex home_of(const World &w, const CheckpointId &id, Rank rank) const;
    const Rebuild *name_rebuild(World &w, const CheckpointId &id, Rank rank) const;
    void name_all_sources(World &w, const CheckpointId &id) const;
    void name_sources(World &w) const;
    /// Whether there is news for the followers.
    bool consider_protection();
    bool cannot_protect() const;
    bool all_joined() const;
    bool consider_giving_up();
    void find_safe(bool giving_up);
    bool recount_dropped();
    void choose_target(bool afresh);
    void tell_protection(std::optional<CheckpointId> protect, std::optional<CheckpointId> safe,
                         std::optional<CheckpointId> freed);
    static std::uint32_t holders_wanted(const World &w);
    /// What must not be forgotten: seals of this step and newer ones.
    std::optional<SealTally::Complete> oldest_wanted() const;
    bool belongs(const CheckpointId &id) const;
    bool still_counts(const CheckpointId &safe) const;

    // roster.cpp
    bool counts(NodeIndex node) const;
    std::optional<NodeIndex> counted_next() const;
    /// Counts, or may count for another leader already.
    bool is_member(NodeIndex node) const { return counts(node) || counted_next() == node; }
    /// Must have on record what decisions of others rest on.
    bool is_survivor(NodeIndex node) const { return !removed(node) && is_member(node); }
    bool has_joined(NodeIndex node) const { return node.value() >= config.step_nodes; }
    bool is_companion(NodeIndex node) const { return config.nodes[node.value()].companion.has_value(); }
    bool has_heard() const;
    bool fits(const World &w) const;
    void merge_roster(const Roster &r);
    void extend_table();
    void tell_added();
    void write_roster();
    void take_over_roster();
    bool knows_world(NodeIndex node) const;
    bool roster_is_firm() const;
    void settle_roster();
    void note_joined(NodeIndex node);
    void change_roster();
    std::optional<NodeIndex> joiner_to_count() const;
    bool in_table(const std::string &name) const;
    bool ever_in_table(const std::string &name) const;
    std::size_t present() const;
    const char *why_refused(const NodeOffered &offer) const;
    void refuse(const NodeOffered &offer, const std::string &why);
    void on_offer(const NodeOffered &m);
    void on_coming(std::uint32_t count);
    std::uint32_t missing_nodes() const;
    void consider_missing();
    void ask_for_nodes(std::uint32_t missing);
    void on_unexpanded(const std::string &why);
    void on_nodes_answer(const SlurmAnswer &m);
    void drop_coming();

    // scaling.cpp
    /// Most nodes of a world.
    std::uint32_t wanted_nodes() const;
    void on_scale(std::uint32_t nodes);
    void take_scaling(const Scaling &other);
    void begin_scaling();
    bool other_size_goes_on() const;
    std::ptrdiff_t size_change() const;
    std::string why_resized(std::ptrdiff_t change) const;
    void consider_size(bool step_complete);
    std::string why_not_yet() const;
    bool has_own_step() const;
    bool is_leaving(NodeIndex node) const { return contains(releasing.nodes, node); }
    std::vector<NodeIndex> too_many() const;
    void consider_release();
    void on_held(const std::string &why);
    void note_released(const std::vector<NodeIndex> &nodes);

    // checking.cpp
    void on_check_order(NodeIndex from, const CheckOrder &m);
    void take_check(const CheckOrder &m);
    void on_local_check(const LocalCheck &m);
    void report_check();
    void on_dismissal(NodeIndex from, const Dismissal &m);
    bool suspected(NodeIndex node) const;
    /// Not suspected, or it has passed its check.
    bool is_trusted(NodeIndex node) const;
    /// It was told so, and has had time to tell its user.
    bool dismissed(NodeIndex node) const;
    std::vector<NodeIndex> check_partners(NodeIndex subject) const;
    void consider_check();
    std::vector<NodeIndex> to_look_at() const;
    void trust_rest();
    bool others_can_lead() const;
    void begin_check(NodeIndex subject);
    void order_check();
    void send_check_order();
    void watch_check();
    void on_check_report(NodeIndex from, const CheckReport &m);
    void on_unfit(NodeIndex node, const std::string &text);
    void on_checked(const CheckReport &m);
    std::string describe_check() const;
    void conclude_check();
    void dismiss(NodeIndex node, CheckVerdict verdict, const std::string &what);
    bool may_resign() const;
    void resign();

    // stored.cpp
    bool floor_unknown() const;
    void ask_storage();
    void on_storage(const LocalStorage &m);
    bool storage_settled();
    bool storage_answered();

    // suspect.cpp
    const WorkerExit *first_exit() const;
    Strikes count_strikes() const;
    TrainStep oldest_to_blame(std::uint64_t signature) const;
    bool may_go_back() const;
    std::vector<Suspect> to_pass_over() const;
    const CheckpointId *stored_choice() const;
    void begin_search();
    bool search_settled();
    bool search_on();
    const Rollback *rollback_wanted() const;
    bool ends_for_damage();
    std::optional<Suspect> left_for(const Strikes &strikes) const;
    void note_suspects(World &w, const Strikes &strikes, std::optional<Suspect> left);
    void tell_step_back(const World &w);
    void tell_rollback(const World &w, const CheckpointId &left);
    void tell_in_vain(const World &w);

    // fence.cpp
    Duration silence(NodeIndex node) const;
    bool fell(NodeIndex node) const;
    bool may_have_ranks(NodeIndex node) const;
    Duration absence_limit(NodeIndex node) const;
    bool lost(NodeIndex node) const;
    bool doubtful(NodeIndex node) const;
    bool reached_by_others(NodeIndex node) const;
    std::vector<NodeIndex> witnesses(NodeIndex node) const;
    void ask_others();
    void on_reach(NodeIndex from, const Reach &m);
    void on_reached(NodeIndex from, const Reached &m);
    std::string signs(const std::vector<NodeIndex> &nodes) const;
    void look_for_doubts();
    bool waits_for(NodeIndex node) const;
    bool starved() const;
    bool is_heard(NodeIndex node) const;
    bool holds_half(const std::vector<NodeIndex> &gone) const;
    void fence_lost();
    void fence_half();
    void fence_alone();
    void look_whether_whole();
    std::optional<Duration> whole_ago() const;
    bool has_word() const;
    void keep_word();
    Time heard_newest(const std::vector<NodeIndex> &nodes) const;
    bool others_may_act(std::size_t here, Time contact) const;
    Time slurm_reached(Time contact);
    void ask(AskSlurm::What what, std::vector<NodeIndex> nodes);
    void take_out(const std::vector<NodeIndex> &gone);
    bool only_batch_host(const std::vector<NodeIndex> &gone) const {
        return gone.size() == 1 && gone.front() == config.batch_host;
    }
    void ask_shrink(const std::vector<NodeIndex> &lost_nodes);
    void ask_for_rest(const std::vector<NodeIndex> &without);
    void ask_end(const std::vector<NodeIndex> &companions);
    void leave_behind(const std::vector<NodeIndex> &nodes);
    void on_unable(const SlurmAnswer &m);
    void on_mark_refused(const SlurmAnswer &m);
    bool lost_marks(const SlurmAnswer &m);
    void pause_marks(const std::string &why);
    bool needs_shrink(const std::vector<NodeIndex> &gone) const;
    bool in_job(const SlurmAnswer &m, NodeIndex node) const;
    void ask_requeue(const char *why);
    bool requeues_for(const std::vector<NodeIndex> &gone) const;
    void on_requeue_refused();
    void on_slurm(const SlurmAnswer &m);
    void wait_for_slurm(const std::string &why);
    bool go_on_without_slurm();
    void on_job(const SlurmAnswer &m);
    void leave_to_others(const SlurmAnswer &m);
    void leave(const std::string &why, int code, NextRun next_run);
    void adopt_removal(const std::vector<NodeIndex> &nodes, const std::string &why);
    std::vector<NodeIndex> unheard() const;
    std::string names(const std::vector<NodeIndex> &nodes) const;
};

}  // namespace dlrover::elastic
