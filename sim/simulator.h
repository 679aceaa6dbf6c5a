// SPDX-License-Identifier: Apache-2.0
// One run of one group from one seed: members as the product has them; network, keepers, agents, workers and
// Slurm simulated. Every rule is checked while it runs.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <vector>

#include "elastic/member.h"
#include "sim/random.h"

namespace dlrover::sim {

using elastic::Duration;
using elastic::Time;

/// As soon as Slurm starts a requeued job again, if it is asked to.
constexpr Duration next_run_comes = std::chrono::seconds(3);

struct Options {
    std::uint64_t seed = 1;
    std::uint32_t nodes = 100;
    elastic::PlantedBug bug = elastic::PlantedBug::none;
    bool trace = false;
    std::optional<std::uint32_t> copies;  ///< of each object on other nodes; none: from the seed
    std::optional<elastic::CodeSize>
        code;                    ///< parities instead; none: from the seed, unless `copies` is given
    std::optional<bool> joins;   ///< Slurm grants nodes in place of others; none: from the seed
    bool no_shrink = false;      ///< Slurm takes nodes out of the job once, or never; marks get lost
    bool rollbacks = false;      ///< persons want older steps back (dlrover rollback)
    bool damage = false;         ///< what nodes hold turns out to be damaged; without storage
    bool scales = false;         ///< persons want more nodes or fewer (dlrover scale)
    bool host_requeues = false;  ///< a lost batch host has the job requeued
    std::uint32_t switches = 0;  ///< on which the nodes hang; 0: nothing is known of them
    bool pairs = false;          ///< the link between two nodes alone goes for a time
};

struct Outcome {
    std::string violation;  ///< empty: none
    Time at{0};
    std::uint64_t events = 0, messages = 0;
    std::string state;  ///< "running", "ended 0", "requeued", ...
};

class Simulator {
  public:
    explicit Simulator(const Options &options);
    ~Simulator();
    Simulator(const Simulator &) = delete;
    Simulator &operator=(const Simulator &) = delete;
    Outcome run();

  private:
    struct Violation {
        std::string text;
    };
    enum class Kind : std::uint8_t {
        deadline,
        message,
        stored,
        input,
        start_workers,
        stop_workers,
        lease,
        step,
        seal,
        slurm_arrives,
        slurm_answers,
        daemon_up,
        reconnect,
        fault,
        heal,
        kill_removed,
        crash_worker,
        objects,
        copy,
        copied,
        fetched,
        folded,
        rebuilt,
        recheck,
        copy_fault,
        code_fault,
        next_run,
        cut,
        cut_check,
        offer,
        expanded,
        expansion_late,
        coming,
        rollback,
        scale,
        damage,
        pair,
        check
    };
    struct Event {
        Time at;
        std::uint64_t order;
        Kind kind;
        std::uint32_t node;
        std::uint32_t incarnation;
        std::uint32_t payload;
        bool operator>(const Event &o) const { return at != o.at ? at > o.at : order > o.order; }
    };
    struct Payload {
        elastic::Input input;
        elastic::AskSlurm ask;
        elastic::Promise promise;
        GenerationId generation;
        std::uint64_t number = 0;
        elastic::Seal object;
        std::uint32_t other = 0, other_incarnation = 0;  ///< the node that it is copied to or fetched from
        std::uint64_t row = 0;                           ///< HeldParity::number
    };
    /// What a node does about copies; but for `fetching` a daemon's crash ends it.
    struct Copies {
        std::optional<CheckpointId> step;               ///< Protect
        std::set<std::pair<Rank, std::uint32_t>> done;  ///< of that step: at this node
        std::map<std::uint32_t, Time> silent_since;     ///< partners that do not answer
        std::uint64_t round = 0;                        ///< of copies: older ones are no more
        bool under_way = false, exposed = false;        ///< one at a time; as its member was told
        Time since{0}, exposed_at{Time::min() / 2};     ///< of `step`; newest time
        std::vector<elastic::ObjectSource> fetching;    ///< of the generation that is published
        std::vector<Rank> rebuilding;                   ///< the same
        bool folding = false;                           ///< one at a time
    };
    /// A parity on a node, and what is in it: of each rank how often its object was folded in. Twice is as
    /// good as never.
    struct HeldParity {
        elastic::Parity parity;
        std::uint64_t number = 0;  ///< another one after it was void
        std::map<Rank, std::uint32_t> folds;
        bool whole = false;  ///< as its node says
        bool is_true() const;
    };
    /// A row of a checkpoint, and the nodes that hold each of its units.
    struct TrueRow {
        std::vector<Rank> ranks;
        std::map<std::uint32_t, std::set<std::uint32_t>> units;
    };
    struct Node {
        std::optional<elastic::Member> member;
        std::optional<elastic::Promise> keeper;
        std::uint32_t incarnation = 0;
        Duration offset{0};
        Time deadline{Time::max()};
        Time frozen_until{0}, lease_until{0}, deadline_at{0}, stored_at{0}, died_at{0};
        Time daemon_at{0};  ///< when its daemon was started, or fell
        bool dead = false, ended = false, agent = false;
        std::uint32_t side = 0;  ///< of a partition
        GenerationId running, started, published, stopping;
        std::uint32_t first_rank = 0;
        std::vector<elastic::Seal> objects;
        std::optional<CheckpointId> asked;  ///< newest that this daemon was told is wanted on storage
        Time job_read{-1};                  ///< when Slurm's last answer to a read of this node came
        Time job_seen{-1};                  ///< how the job was at that time is what it says
        GenerationId pending_exit;          ///< not told yet: the daemon was down
        int exit_code = -1;
        elastic::NextRun next_run = elastic::NextRun::none;  ///< as it ended
        Copies copies;
        std::set<std::pair<CheckpointId, Rank>> foreign;  ///< of `objects`: copies for others
        std::vector<elastic::NodeSpec> added;             ///< NodesAdded; the driver's record
        std::optional<std::uint32_t> coming_told;         ///< NodesComing
        std::size_t roster_version = 0;                   ///< on record
        std::vector<HeldParity> parities;
        std::pair<GenerationId, CheckpointId> safe_seen;  ///< by this node, in that world
        bool muted = false;                       ///< it is about to die; little of what it says is heard
        std::optional<elastic::Damaged> damaged;  ///< on record, for the next daemon
        std::map<std::uint32_t, std::uint64_t> heard;  ///< by this leader: each node's newest report
        std::vector<NodeIndex> removed;                ///< as this member knows
        bool looked_at = false;                        ///< a check of it was begun, in this run of the job
        bool unfit = false;                            ///< of this run's own nodes: it fails every check
        bool says_so = false;                          ///< it knows: its own hardware is broken
        bool dismissed = false;                        ///< a leader said so after a check
        std::set<std::uint32_t> broken;                ///< links, as this daemon knows
    };
    struct PairCut {
        std::uint32_t one = 0, other = 0;
        Time since{0}, until{0};
    };
    struct Companion {  ///< a job of one node that Slurm was asked for
        JobId job;
        std::string name;
        Time started{0}, joined_at{Time::min() / 2};
        bool starts = true, over = false;
        /// Has the name of a lost node; fails every check; has exchanged bytes with another node.
        bool returns = false, unfit = false, has_met = false;
        bool merged = false;                ///< a node that the group's own job was expanded by
        std::optional<std::uint32_t> node;  ///< its index
    };
    /// What the driver that asked for an expansion waits for.
    struct Expansion {
        std::uint32_t node = 0, incarnation = 0;
        std::uint64_t request = 0;
        std::set<std::uint32_t> numbers;  ///< of Slurm::companions, that have not asked to join yet
    };
    struct Run {  ///< a generation's training
        elastic::World world;
        std::uint32_t world_size = 0, running = 0;
        std::uint64_t step = 0, steps_done = 0;
        bool ticking = false;
        std::vector<bool> finished;
        std::map<TrainStep, std::uint32_t> sealed;  ///< by how many ranks
        std::optional<TrainStep> complete;
        TrainStep given_up;  ///< everything before it, since `complete`
    };
    struct Slurm {
        std::vector<NodeIndex> nodes;
        bool running = true;
        std::uint32_t requeues = 0;
        enum class Mode { well, late, answer_lost, refusing, unreachable } mode = Mode::well;
        std::uint32_t unreachable_side = 0;  ///< of a partition; 0: none
        std::map<NodeIndex, Time> removed_at;
        std::vector<NodeIndex> left;     ///< AskSlurm::What::leave_behind
        std::optional<bool> can_shrink;  ///< Options::no_shrink: once more
        std::optional<Time> requeued_at;
        Time next_run_at{0};             ///< not before
        std::set<std::uint32_t> to_end;  ///< nodes of a requeued job that are not reached: theirs runs on
        std::deque<Companion> companions;
        std::vector<Expansion> expansions;
    };
    enum class Fault : std::uint8_t {
        worker,
        workers,
        daemon,
        leader_daemon,
        node,
        leader_node,
        world_half,
        freeze,
        freeze_leader,
        partition,
        cut_leader,
        one_way,
        chaos,
        slurm,
        agent,
        hopeless,
        signal,
        stale_seal,
        torn,
        count
    };
    /// Once, in the middle of a copy.
    enum class CopyFault : std::uint8_t {
        none,
        sender_node,
        receiver_node,
        sender_daemon,
        receiver_daemon,
        in_fetch,
        count
    };

    enum class Taken : std::uint8_t { no, held, later };
    /// Once, in the middle of a fold or of what is made again.
    enum class CodeFault : std::uint8_t {
        none,
        mover_in_fold,
        holder_daemon_in_fold,
        holder_in_fold,
        member_in_fold,
        in_rebuild,
        count,
        group  ///< as many nodes of one group as it outlives, at some time
    };

    // simulator.cpp
    void push(Time at, Kind kind, std::uint32_t node, std::uint32_t payload = 0);
    std::uint32_t keep(Payload p);
    void handle(const Event &e);
    void handle_copies(const Event &e, const Payload &p);
    void handle_local(const Event &e, const Payload &p);
    Payload take(const Event &e);
    void feed(std::uint32_t node, const elastic::Input &input);
    void act_store(std::uint32_t node, elastic::Store &store);
    void act_freed(std::uint32_t node, const elastic::StepFreed &a);
    void act_void(std::uint32_t node, const elastic::StepsVoid &a);
    void act_end(std::uint32_t node, const elastic::End &a);
    void act(std::uint32_t node, elastic::Action &action);
    void start_daemon(std::uint32_t node);
    std::vector<std::uint32_t> switches() const;
    void reconnect(std::uint32_t node);
    void crash_daemon(std::uint32_t node);
    void transmit(std::uint32_t from, std::uint32_t to, elastic::Message message);
    bool linked(std::uint32_t from, std::uint32_t to) const;
    void set_deadline(std::uint32_t node);
    bool in_job(std::uint32_t node) const;
    void trace(const std::string &text) const;
    elastic::Duration latency();

    // workers.cpp
    void publish(std::uint32_t node, const elastic::World &world);
    void start_workers(std::uint32_t node, const GenerationId &generation);
    void stop_workers(std::uint32_t node, const GenerationId &generation);
    void save_again(const elastic::World &world);
    void halt_workers(std::uint32_t node);
    void fail_worker(std::uint32_t node, int status, std::uint64_t signature);
    void on_lease(std::uint32_t node);
    void lose_lease(std::uint32_t node, GenerationId generation);
    void on_step(const GenerationId &generation);
    void on_seal(std::uint32_t node, const GenerationId &generation, std::uint64_t step, bool accepted);
    bool has_slot(const Node &n, std::uint32_t ranks, const GenerationId &generation) const;
    bool whole(const Run &run) const;

    // copies.cpp
    void plan_copies();
    Duration copy_time();
    std::optional<std::uint32_t> first_rank(const elastic::World &world, std::uint32_t node) const;
    std::vector<Rank> copied_ranks(const elastic::World &world, std::uint32_t node,
                                   const CheckpointId &id) const;
    std::vector<Rank> restored_ranks(const elastic::World &world, std::uint32_t node) const;
    Taken take_copy(const Payload &p);
    static std::vector<NodeIndex> partners_of(const elastic::World &world, std::uint32_t node);
    static const elastic::Seal *find_object(const Node &n, const CheckpointId &id, Rank rank);
    void protect(std::uint32_t node, const CheckpointId &id);
    void copy_next(std::uint32_t node);
    bool answers(std::uint32_t node, const Payload &p) const;
    bool accepts(const Node &n, const elastic::Seal &object) const;
    void on_copied(std::uint32_t node, const Payload &p);
    void take_object(std::uint32_t node, const elastic::Seal &object);
    void tell_exposed(std::uint32_t node);
    void end_copies(std::uint32_t node);
    void begin_copies(std::uint32_t node, const elastic::World &world);
    void fetch_all(std::uint32_t node);
    void fetch(std::uint32_t node, const elastic::ObjectSource &source, std::uint64_t attempt);
    void on_fetched(std::uint32_t node, const Payload &p);
    void plan_copy_fault(std::uint32_t node, std::uint32_t other, Duration takes);
    void plan_fetch_fault(std::uint32_t node, Duration takes);
    void inject_copy_fault(CopyFault fault, std::uint32_t node);

    // parities.cpp
    bool codes() const { return config_.code.data > 0; }
    void plan_parities();
    bool is_published(const Node &n) const;
    HeldParity *find_parity(Node &n, const elastic::Parity &parity);
    Taken take_part(std::uint32_t node, const Payload &p);
    void on_folded(std::uint32_t node, const Payload &p);
    void plan_recheck(std::uint32_t node);
    void on_recheck(std::uint32_t node, const Payload &p);
    void drop_open_rows(Node &n) const;
    void hear_safe(std::uint32_t node);
    elastic::LocalObjects objects_of(const Node &n) const;
    void begin_rebuilds(std::uint32_t node, const elastic::World &world);
    void rebuild(std::uint32_t node, Rank rank, std::uint64_t attempt);
    bool part_is_there(const CheckpointId &id, const elastic::Rebuild &r,
                       const elastic::RebuildPart &part) const;
    bool part_was_dropped(const CheckpointId &id, const elastic::Rebuild &r,
                          const elastic::RebuildPart &part) const;
    void on_rebuilt(std::uint32_t node, const Payload &p);
    void take_rebuilt(std::uint32_t node, const elastic::Rebuild &r);
    void inject_code_fault(CodeFault fault, std::uint32_t node);
    void plan_code_fault(CodeFault fault, std::uint32_t node, Duration takes, std::uint32_t percent);
    void lose_group();
    std::vector<TrueRow> true_rows(const CheckpointId &id, bool now) const;
    static bool outlives(const TrueRow &row, std::size_t losses);
    void note_rows(std::uint32_t node, const elastic::World &world);
    bool is_lost(const elastic::World &world) const;
    void check_groups(const elastic::World &world) const;
    void check_rebuilds(const elastic::World &world) const;
    static const elastic::Rebuild *names_rebuild(const elastic::World &world, Rank rank);
    bool is_rebuilt(const elastic::World &world, Rank rank, std::uint32_t node) const;

    // slurm.cpp
    void slurm_arrives(std::uint32_t node, const elastic::AskSlurm &ask);
    bool slurm_does(std::uint32_t node, const elastic::AskSlurm &ask);
    bool can_shrink();
    bool slurm_reaches(std::uint32_t node) const;
    bool requeue(std::uint32_t node, const std::vector<NodeIndex> &excluded);
    void end_processes(std::uint32_t node);

    // joins.cpp
    void plan_joins();
    Companion *companion_of(std::uint32_t node);
    const Companion *companion_of(std::uint32_t node) const;
    static bool is_of(const elastic::NodeSpec &spec, const Companion &c);
    bool is_known(std::uint32_t node, const Companion &c) const;
    std::optional<std::string> lost_name() const;
    bool is_unfit(std::uint32_t node) const;
    void run_check(std::uint32_t node, const elastic::RunCheck &check);
    std::uint32_t count_coming(std::uint32_t node) const;
    bool grant_nodes(std::uint32_t node, std::uint32_t count);
    Companion &add_companion(bool merged);
    bool expand_job(std::uint32_t node, const elastic::AskSlurm &ask);
    bool waits_for(const Expansion &e) const;
    void start_expanded(const Payload &p);
    void note_asked(std::uint32_t number);
    void end_expansion(std::size_t at, bool done);
    void on_late_expansion(const Payload &p);
    bool is_left_over(const Companion &c) const;
    bool is_any_left_over() const;
    Time last_joined() const;
    bool in_groups_job(std::uint32_t node) const;
    void check_companions() const;
    bool given_up(std::uint32_t node) const;
    void end_companion(Companion &c, bool reached);
    bool slurm_does_companions(std::uint32_t node, const elastic::AskSlurm &ask);
    void look_at_queue();
    void on_added(std::uint32_t node, const elastic::NodesAdded &m);
    void offer(const Payload &p);
    void start_joiner(std::uint32_t node, const std::vector<elastic::NodeSpec> &added);
    void hit_writer(std::uint32_t node, const elastic::Promise &promise);
    bool truly_counts(std::uint32_t node) const;
    void check_roster(std::uint32_t node, const elastic::Promise &promise);
    bool grown_back() const;

    // next_run.cpp
    bool plan_next_run();
    void begin_next_run();
    void begin_next_run(std::uint32_t node);
    static void forget(Node &n);
    void move_objects();
    void expect_kept();
    void suspect_some();
    void leave_out(const std::vector<std::uint32_t> &unfit);
    std::vector<std::uint32_t> choose_unfit();
    void check_looked_at(const elastic::World &world) const;
    void check_kept(const elastic::World &world) const;

    // faults.cpp
    void plan_faults();
    void plan_storage();
    bool poisons(const elastic::World &world);
    void look_at_storage(std::uint32_t node, const elastic::LookAtStorage &look);
    void inject(Fault fault);
    void cut_links(Fault fault, std::uint32_t node, std::uint32_t head);
    bool plan_cut();
    void cut_smaller_side();
    std::vector<std::uint32_t> larger_side() const;
    void check_larger_side() const;
    void inject_local(Fault fault, std::uint32_t node);
    void heal();
    void plan_rollbacks();
    void plan_scales();
    void scale();
    void roll_back();
    std::uint32_t random_node();
    std::optional<std::uint32_t> leader() const;
    void freeze(std::uint32_t node);
    void lose_node(std::uint32_t node);
    void daemon_falls(std::uint32_t node);

    // pairs.cpp
    bool plan_pairs();
    void cut_pair();
    void tell_links();
    bool is_cut_pair(std::uint32_t one, std::uint32_t other) const;
    bool is_calm(std::uint32_t node, Duration lately) const;
    bool is_network_calm(Duration lately) const;
    bool is_reached(std::uint32_t node, std::uint32_t leader, Duration lately) const;
    void check_taken_out(std::uint32_t node, const elastic::AskSlurm &ask) const;

    // damage.cpp
    void plan_damage();
    void plan_restore_damage(const elastic::World &world);
    void on_damage(std::uint32_t how);
    bool may_be_damaged(const Node &n) const;
    void damage_restored();
    void find_damage();
    void drop_object(std::uint32_t node, const elastic::Seal &object);
    void drop_parity(std::uint32_t node, const elastic::Parity &parity);
    void note_drop(std::uint32_t node, const CheckpointId &id, std::optional<Rank> rank);
    bool was_dropped(std::uint32_t node, const CheckpointId &id, std::optional<Rank> rank) const;
    bool has_lost_a_part(const CheckpointId &id) const;
    void note_report(std::uint32_t node, const elastic::PeerMessage &m);
    bool counts_on_dropped(std::uint32_t leader, const CheckpointId &id) const;
    void check_damage(const elastic::World &world) const;

    // checks.cpp
    [[noreturn]] void fail(std::string text) const;
    void check(bool holds, const char *text) const {
        if (!holds) fail(text);
    }
    void check_send(std::uint32_t node, NodeIndex to, const elastic::Message &m);
    void check_acting(std::uint32_t node, Term term);
    void check_world(std::uint32_t decider, const elastic::World &world);
    void check_stored(const elastic::World &world);
    void check_restore(const elastic::World &world);
    const elastic::World *world_known_before(std::uint32_t decider, const elastic::World &world) const;
    void check_suspects(std::uint32_t decider, const elastic::World &world) const;
    void check_rollback(std::uint32_t decider, const elastic::World &world) const;
    std::optional<elastic::Scaling> scaling() const;
    std::size_t wanted_nodes() const;
    bool is_released(std::uint32_t node) const;
    bool scaled() const;
    void check_released() const;
    void check_void(const elastic::StepsVoid &steps);
    void check_sealed(const elastic::Seal &seal);
    /// By one of the ranks.
    static bool wanted_on_storage(TrainStep step);
    void check_asked(std::uint32_t node, const CheckpointId &id);
    void check_heard(const Node &node, const std::vector<elastic::Action> &actions) const;
    void check_publish(std::uint32_t node, const elastic::World &world);
    void check_store(std::uint32_t node, const elastic::Promise &promise);
    void check_ask(std::uint32_t node, const elastic::AskSlurm &ask);
    void check_note(const elastic::Note &note);
    void check_one_world(const GenerationId &generation);
    void check_requeue(std::uint32_t node) const;
    void check_job_end(std::uint32_t node, const elastic::End &end) const;
    bool others_act(std::uint32_t node) const;
    bool settled(std::string *state) const;

    // check_copies.cpp
    void check_partners(const elastic::World &world) const;
    void check_switches(const elastic::World &world) const;
    void check_sources(const elastic::World &world) const;
    void check_safe_kept(const elastic::World &world);
    void check_restored(std::uint32_t node, const elastic::World &world);
    void check_safe(std::uint32_t node, const CheckpointId &id);
    void check_freed(std::uint32_t node, const elastic::StepFreed &freed);
    void check_given_up(std::uint32_t node);
    bool counted_on(std::uint32_t node, const GenerationId &generation) const;
    bool in_force(const elastic::Seal &seal) const;
    bool safe_again() const;
    bool truly_safe(const CheckpointId &id, std::size_t holders, bool now = false);
    std::uint32_t size_of(const elastic::World &world) const;

    Options options_;
    Random random_;
    Random storage_random_{options_.seed ^ 0x73746f72616765u};
    Random copies_random_{options_.seed ^ 0x636f70696573u};
    Random next_random_{options_.seed ^ 0x6e657874u};  ///< of the job's next run
    Random codes_random_{options_.seed ^ 0x636f646573u};
    Random checks_random_{options_.seed ^ 0x636865636b73u};
    Random joins_random_{options_.seed ^ 0x6a6f696e73u};
    Random cuts_random_{options_.seed ^ 0x63757473u};
    Random marks_random_{options_.seed ^ 0x6d61726b73u};
    Random poison_random_{options_.seed ^ 0x706f69736f6eu};
    Random rollback_random_{options_.seed ^ 0x726f6c6c6261636bu};
    Random scale_random_{options_.seed ^ 0x7363616c65u};
    Random damage_random_{options_.seed ^ 0x64616d616765u};
    Random expansion_random_{options_.seed ^ 0x657870616e64u};
    Random pairs_random_{options_.seed ^ 0x7061697273u};
    elastic::LocalStorage storage_;  ///< what is there before the run
    elastic::GroupConfig config_;    ///< with all nodes that have joined
    std::uint32_t step_nodes_ = 0;
    Time now_{0};
    std::uint64_t order_ = 0, messages_ = 0, steps_since_heal_ = 0;
    std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
    std::vector<Payload> payloads_;
    std::vector<std::uint32_t> free_payloads_;
    std::deque<Node> nodes_;  ///< those that join are added while others are looked at
    std::map<GenerationId, Run> runs_;
    Slurm slurm_;
    std::vector<Fault> faults_;
    std::vector<NodeIndex> world_before_cut_;
    std::uint32_t smaller_side_ =
        0;  ///< so many nodes are cut off by plan_cut(), and nothing else goes wrong
    Time faults_end_{0}, healed_at_{0};
    std::set<std::pair<std::uint32_t, std::uint32_t>> one_way_;  ///< cut from → to
    std::optional<PairCut> pair_cut_;                            ///< the newest
    bool chaos_ = false;
    std::uint32_t torn_ = 0;  ///< steps to come in which a worker fails while the others seal
    bool hopeless_ = false, signalled_ = false;
    bool poison_planned_ = false;  ///< a step that is saved now is bad, and what is there before it is not
    std::optional<CheckpointId> poison_;  ///< whose worlds fail, all in one way
    CopyFault copy_fault_ = CopyFault::none;
    CodeFault code_fault_ = CodeFault::none;
    std::uint64_t rows_begun_ = 0;
    Time copies_end_{0}, joins_end_{0}, pairs_end_{0};
    bool calm_start_ = false;      ///< no faults but those that joins bring
    std::uint64_t last_step_ = 0;  ///< the program ends here

    // What the checks remember.
    std::uint32_t firm_added_ = 0;
    std::set<NodeIndex> firm_counted_;
    Term acting_term_;
    std::optional<std::uint32_t> acting_node_;
    std::map<GenerationId, std::vector<NodeIndex>> prepared_;
    std::map<GenerationId, elastic::World> worlds_;
    std::optional<elastic::World> newest_world_;
    std::map<GenerationId, std::set<TrainStep>> rollbacks_;  ///< what persons have wanted of each world
    /// What the world had gone on from, and who has found it so.
    struct FoundDamaged {
        GenerationId world;
        std::uint32_t node = 0;
    };
    std::optional<FoundDamaged> damaged_;
    /// An object, or without a rank a parity, that a node has dropped. Of its reports those above `number`
    /// tell of it no more.
    struct Drop {
        std::uint32_t node = 0;
        CheckpointId id;
        std::optional<Rank> rank;
        std::uint64_t number = 0;
    };
    std::vector<Drop> drops_;
    std::set<std::pair<GenerationId, std::uint32_t>> real_exits_;
    /// The newest step that was called safe: it survives the loss of so many nodes.
    struct Safe {
        CheckpointId id;
        std::size_t copies = 0;
        Time at{0};
        std::vector<std::uint32_t> nodes;           ///< that held objects of it then
        std::vector<std::set<std::uint32_t>> held;  ///< by rank: nodes with its object
        std::vector<TrueRow> rows;                  ///< of the world in which it was called so
        GenerationId world;
    };
    std::optional<Safe> safe_;
    std::optional<CheckpointId> newest_safe_;  ///< that was ever called so
    bool next_run_planned_ = false, next_run_begun_ = false;
    bool rest_trusted_ = false;         ///< a leader has found nobody to check the rest with
    std::optional<CheckpointId> kept_;  ///< was safe, and each of its objects is on a node of the next run
    std::map<GenerationId, std::set<NodeIndex>> answered_;  ///< whose answer to Prepare a leader has
};

}  // namespace dlrover::sim
