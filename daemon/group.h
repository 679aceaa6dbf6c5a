// SPDX-License-Identifier: Apache-2.0
// One group on this node: drives elastic::Member with what agents, workers, peers and Slurm say, and does
// what it decides.
#pragma once

#include <map>
#include <set>

#include "common/settings.h"
#include "daemon/arena.h"
#include "daemon/backoff.h"
#include "daemon/event_log.h"
#include "daemon/group_check.h"
#include "daemon/group_copies.h"
#include "daemon/group_mover.h"
#include "daemon/group_storage.h"
#include "daemon/group_tables.h"
#include "daemon/group_verify.h"
#include "daemon/idle_ranks.h"
#include "daemon/job_deadline.h"
#include "daemon/join_codec.h"
#include "daemon/message_codec.h"
#include "daemon/pmix_relay.h"
#include "daemon/progress_pages.h"
#include "daemon/site.h"
#include "daemon/slurm.h"
#include "elastic/member.h"
#include "transport/peer_network.h"

namespace dlrover::daemon {

/// What a group works with; lives longer than any group.
struct GroupServices {
    EventLoop &loop;
    LocalPort &port;
    RecordKeeper &keeper;
    ckpt::Prefaulter &prefaulter;
    MemoryBudget &budget;
    SlurmClient &slurm;
    transport::PeerNetwork &peers;
    const Settings &settings;
    std::string node;
    /// A free TCP port in the site's range; 0: none.
    std::function<std::uint16_t()> free_port;
    /// Where a process runs; empty: not known.
    std::function<std::optional<unsigned>(std::int32_t pid)> numa_node_of = {};
    bool requeues = true;        ///< jobs may come back
    const Site *site = nullptr;  ///< none: nothing is known of it
};

/// Thread: the event loop's.
class Group : private JobMemory {
  public:
    Group(GroupServices services, records::GroupRecordT record);
    ~Group();
    Group(const Group &) = delete;
    Group &operator=(const Group &) = delete;

    /// After a restart of the daemon: what the keeper held, then resume().
    void restore(const RecordName &name, std::span<const std::uint8_t> value, UniqueFd fd);
    void resume();
    /// Puts the group on record; `done` follows.
    void save(RecordKeeper::Done done = {});
    /// Asks Slurm where its nodes are, until it answers, and links to them.
    void find_addresses();
    void on_slurm_return();
    void tell_standstill(const std::string &text);

    // ---- what comes in; false: not for this role or state ----
    void on_agent_message(const Client &from, local::MessageT message);
    void on_worker_message(const Client &from, local::MessageT message);
    void on_writer_message(const Client &from, const local::MessageT &message);
    void on_mover_message(const Client &from, const local::MessageT &message);
    void on_pmix_message(const Client &from, const local::MessageT &message);
    void on_closed(const Client &client);
    void on_peer_message(const std::string &node, const std::vector<std::uint8_t> &payload);
    void on_flush_word(const std::string &node, const std::vector<std::uint8_t> &payload);
    void on_move_word(const std::string &node, const std::vector<std::uint8_t> &payload);
    void on_pmix_word(const std::string &node, const std::vector<std::uint8_t> &payload);
    void on_peer_link(const std::string &node, bool up);
    void on_newcomer(const std::string &node, const join::WordT &word);
    /// The step's last task on this node is gone.
    void on_step_ended();
    /// Ends it here, whatever the other nodes do.
    void end_here(int exit_code, const std::string &message, proto::NextRun next_run = proto::NextRun::None);

    // ---- what there is ----
    JobId job() const { return JobId(record_.registration->job_id); }
    StepId step() const { return StepId(record_.registration->step_id); }
    std::uint32_t uid() const { return record_.registration->uid; }
    const proto::StepRegistrationT &registration() const { return *record_.registration; }
    const std::string &key() const { return key_; }
    const std::string &lineage() const { return record_.lineage; }
    bool ended() const { return record_.ended; }
    /// Without the others, which go on, or say how it ended.
    bool evicted() const { return record_.evicted; }
    local::OutcomeReplyT outcome() const;
    /// uid: who asks, for the log.
    local::RollbackReplyT roll_back(const local::RollbackRequestT &request, std::uint32_t uid);
    local::ScaleReplyT scale(const local::ScaleRequestT &request, std::uint32_t uid);
    bool step_ended() const { return record_.removed_us != 0; }
    bool has_agents() const { return !agents_.empty(); }
    /// Since nobody of it is connected.
    EventLoop::Time idle_time() const;
    std::unique_ptr<local::GroupStatusT> status() const;
    /// The newest that fit, as EventLog::newest(); the others count as dropped.
    std::unique_ptr<local::GroupEventsT> events(std::size_t &room) const;
    /// Forgets everything, records included.
    void drop_all();
    void drop_memory();

    // ---- group_join.cpp ----
    /// None: lost nodes are not replaced.
    void keep_launch(std::unique_ptr<proto::LaunchSpecT> launch);
    std::size_t launch_bytes() const { return launch_bytes_; }
    /// By which step this node has joined; none: it is one of the step's own.
    std::optional<StepKey> own_step() const {
        StepKey key(record_.companion_job, record_.join_step);
        return record_.companion_job != 0 ? std::optional(key) : std::nullopt;
    }
    /// Slurm does not count this node among those of the group's job.
    bool in_own_job() const { return own_step() && own_step()->first != job(); }
    void forget_requeue();
    void note_next_run(const elastic::End &end);
    void request_requeue(std::vector<std::string> excluded, SlurmClient::Done done);
    RequeueOrder requeue_order(std::vector<std::string> excluded) const;
    std::vector<std::string> to_be_checked(const std::vector<std::string> &lost) const;

    // ---- group_kept.cpp: it has ended, and what its job's next run may need stays ----
    bool charges_job() const { return record_.charge_job; }
    bool is_kept() const { return record_.kept_until_us != 0; }
    std::int64_t kept_until_us() const { return record_.kept_until_us; }
    MemoryBudget::Holding holding() const { return arena_.holding(); }
    /// Whether Slurm should be asked now about the job.
    bool asks_for_next_run() const;
    /// What Slurm says. It ends being kept where the job does not come back here.
    void on_job(const Result<SlurmJob> &job);
    void drop_kept(const std::string &why);
    bool is_excluded_from_next_run(NodeIndex node) const;
    bool watches_next_run() const;
    bool may_hasten() const;
    void resume_requeue();
    void see_to_next_run(const SlurmJob &waiting);
    NextRunOrder next_run() const;
    bool is_kept_for(const proto::StepRegistrationT &step, const std::string &lineage) const;
    /// Takes over what `before` has kept, and, of the same step number, its record's place. `before` has
    /// nothing then.
    void adopt(Group &before);

  private:
    struct Agent {
        ConnectionId connection = 0;
        std::uint16_t task = 0;
        std::int32_t pid = 0;  ///< its own
        GenerationId running;  ///< told to run, or said to run; {0,0}: none
        GenerationId stopped;
        bool verifies = false, looks = false;
        GenerationId leaving;  ///< its processes were told to leave this one by themselves, and have not all
        std::map<std::uint32_t, std::int32_t> pids;  ///< by local rank
    };
    struct Worker {
        Client client;
        GenerationId generation;
        Rank rank;
        std::uint32_t local_rank = 0;
        std::set<SegmentId> known_segments;
        std::optional<SlotIndex> reading;
        CheckpointId reading_id;
        std::map<Rank, std::optional<SlotIndex>>
            keepers;                    ///< of what it reads, and their slots once it asked
        bool reading_verified = false;  ///< its object, while its program started
        bool reading_stored = false;    ///< restores from storage
        bool reading_spread = false;    ///< restores what a world of another size has in memory
        bool subscribed = false;
        bool stays = false;        ///< leaves its generation by itself
        bool skipping = false;     ///< its last save found no slot
        bool saved_again = false;  ///< a step with other data; told once
    };

    /// A process that has left its generation, and waits for what it is in the next one.
    struct Stayer {
        std::uint32_t request = 0;
        std::uint32_t local_rank = 0;
        GenerationId left;
    };

    /// The job is being expanded, for the leader.
    struct Expansion {
        std::uint64_t request = 0;
        std::uint32_t left = 0;   ///< nodes to come; `node` is one of them
        Growth node;              ///< in the job, and has not asked to join yet; unnamed: none
        std::uint64_t start = 0;  ///< StartStep of it; 0: none
        EventLoop::Handle timer;
    };

    // group.cpp: the member and its actions
    void restore_promise(std::span<const std::uint8_t> value);
    std::uint32_t node_count() const {
        return static_cast<std::uint32_t>(record_.registration->node_names.size());
    }
    void create_member();
    elastic::GroupConfig config() const;
    void feed(const elastic::Input &input);
    void feed_later(elastic::Input input);
    std::string switch_of(const std::string &node) const;
    void tell_switches();
    void schedule();
    void perform(elastic::Action &action);
    void act(elastic::SendMessage &action);
    void act(elastic::Store &action);
    void act(elastic::Publish &action);
    void act(elastic::StopWorkers &action);
    void act(elastic::RenewLease &action);
    void act(elastic::StepComplete &action);
    void act(elastic::StepFreed &action);
    void act(elastic::Protect &action);
    void act(elastic::StepsVoid &action);
    void act(elastic::StorageAsked &action);
    void act(elastic::StepSafe &action);
    void act(elastic::StepDurable &action);
    void act(elastic::JobEndsSoon &action);
    void watch_job_end();
    std::uint64_t seconds_left() const;
    void act(elastic::AskSlurm &action);
    void answer_job(elastic::SlurmAnswer &answer, const SlurmJob &loaded) const;
    void act(elastic::NodesAdded &action);
    void act(elastic::LookAtStorage &action);
    void act(elastic::RunCheck &action);
    void act(elastic::NodeUnfit &action);
    void act(elastic::End &action);
    void act(elastic::Note &action);
    void act(elastic::Tell &action);
    void say_on_terminal(const std::string &text);
    void send_to(const std::string &node, const elastic::Message &message);
    void say_finished(const std::string &node, const elastic::Message &message);
    void answer_slurm(std::uint64_t request, const Status &status, const SlurmJob *job = nullptr,
                      std::vector<NodeIndex> over = {});
    void tell_end(int exit_code, const std::string &message);
    void finish_end();
    std::optional<NodeIndex> index_of(const std::string &node);
    EventLoop::Time agent_lease() const;
    void send_envelope(const std::string &node, transport::PeerEnvelope::Kind kind, proto::Bytes payload);

    // group_job_end.cpp
    bool is_removed(NodeIndex node) const;
    bool without_host() const;
    bool watches_job() const;
    void watch_job();
    void look_at_job();

    // group_scale.cpp
    local::ScaleReplyT scale_refusal(std::uint64_t nodes) const;
    local::ScaleReplyT take_scale(std::uint64_t nodes, const std::string &who);
    local::PmixScaleReplyT pmix_scale(const local::PmixScaleRequestT &request);
    local::PmixRestartReplyT pmix_restart(const local::PmixRestartRequestT &request);
    bool is_released(NodeIndex node) const;
    void tell_allocation();

    // group_rollback.cpp
    std::string rollback_refusal(const local::RollbackRequestT &request) const;
    std::string restart_refusal(std::int64_t step) const;

    // group_preempted.cpp
    /// Nodes of the job itself that are before this one and were not lost.
    std::uint32_t survivors_before(const std::string &but_for = {}) const;
    bool may_be_preempted() const;
    void ask_whether_preempted();
    bool ask_again(const Status &status);
    void requeue_preempted();

    // group_agents.cpp
    void on_agent_hello(const Client &from, std::uint32_t id, const local::AgentHelloT &hello);
    std::optional<std::string> refusal_of(const local::AgentHelloT &hello) const;
    Agent *agent_of(ConnectionId connection);
    void on_worker_started(Agent &agent, const local::WorkerStartedT &started);
    void on_worker_exited(Agent &agent, const local::WorkerExitedT &exited);
    void on_workers_stopped(Agent &agent, const local::WorkersStoppedT &stopped);
    void on_agent_gone(std::uint16_t task);
    void feed_when_ready(elastic::Input input);
    void report_readiness();
    void report_readiness_soon();
    void report_stopped();
    void push_world(Agent &agent);
    /// may_stay: its workers may leave by themselves, where all of them have said so.
    void push_stop(Agent &agent, const std::string &reason, bool may_stay = true);
    void push_end(const Agent &agent);
    bool is_local_rank_of(const Agent &agent, std::uint32_t local_rank) const;

    // group_join.cpp: nodes that join
    std::uint32_t own_nodes() const {
        return node_count() - static_cast<std::uint32_t>(registration().companion_jobs.size());
    }
    // group_addresses.cpp
    void use_recorded_addresses();
    void use_addresses(const std::vector<std::string> &asked, const std::vector<NodeAddress> &found);
    bool set_address(const std::string &node, const std::string &address);
    void forget_address(const std::string &node);
    void restore_launch(const RecordName &name, records::LaunchRecordT piece);
    void put_together_launch();
    void drop_launch();
    bool leads() const;
    std::string left_mark(const std::string &node) const {
        return daemon::left_mark(step(), registration().restart_count, node);
    }
    std::string mark() const { return companion_mark(job(), step(), registration().restart_count); }
    void check_newcomer_with_slurm(const std::string &node, std::shared_ptr<proto::StepRegistrationT> step);
    void offer(const std::string &node, const proto::StepRegistrationT &step);
    void answer_newcomer(const std::string &node, StepKey joins, join::Kind kind,
                         const std::string &text = {});
    void welcome(const std::string &node, StepKey joins);
    Status check_newcomer_with_job(const SlurmStep &slurm, const std::string &node, StepKey joins) const;
    std::string in_place_of() const;
    void add_companions(std::uint64_t request, std::uint32_t wanted, std::uint32_t tries);
    /// expands: for a node of the job itself.
    CompanionOrder companion_order(bool expands = false) const;
    void drop_coming(std::uint64_t request);
    void end_companions(std::uint64_t request, const std::vector<NodeIndex> &nodes);
    void read_job(std::uint64_t request);
    /// Those that are not in the table.
    std::vector<Companion> coming(const std::vector<Companion> &all) const;
    void know_coming(const std::vector<Companion> &all);
    void tell_coming();
    void load_coming();
    void count_coming();
    void watch_for_leader();

    // group_checks.cpp: nodes that were lost and come back
    GroupCheck &check();
    Status room_for_check() const;
    void note_removed();
    /// Slurm may not have noticed yet that it is gone; or it can not be checked.
    bool is_excluded(const std::string &node) const;
    EventLoop::Time distrust() const;
    // group_expand.cpp: nodes that the job itself is expanded by
    void expand_job(std::uint64_t request, std::uint32_t wanted);
    void look_for_grown(std::uint32_t wanted);
    void begin_expansion(std::uint32_t wanted, const std::vector<std::string> &left_over);
    void grow();
    void start_grown();
    void on_step_ended_there(const local::StepEndedT &ended);
    void on_grown_asks(const std::string &node);
    void drop_grown(const std::string &why);
    void end_expansion(const Status &status);
    void drop_grown_nodes(std::uint64_t request);
    void cancel_expanding(const std::vector<Companion> &found);
    std::vector<std::string> left_over(const SlurmJob &job) const;
    void remove_grown(std::vector<std::string> nodes, SlurmClient::Done done);

    // group_kept.cpp
    bool keep_memory();

    // group_memory.cpp
    std::optional<Allowance> allowance(Rank rank) const override;
    void fill(Rank rank, const ArenaSegment &segment) override;
    const Agent *agent_of_rank(Rank rank) const;
    std::optional<Allowance> allowance_of(const Agent &agent) const;
    void push_fill(const Agent &agent, const ArenaSegment &segment);
    void push_unfilled(const Agent &agent);
    void on_segment_filled(const local::SegmentFilledT &filled);
    void tell_memory(const Worker &worker, const Status &status);

    // group_verifies.cpp
    GroupVerify::Hooks verify_hooks();
    bool only_world_here() const;
    std::set<Rank> objects_to_verify(const CheckpointId &from);
    std::string why_missing(Rank rank, const Status &status) const;
    void verify_restore_point();

    // group_flush.cpp
    void create_storage();
    std::optional<std::vector<Rank>> own_ranks(std::uint32_t size) const;
    local::RestorePlanT plan_from_storage() const;
    std::optional<elastic::CompleteStep> complete_in_memory() const;
    void tell_storage_of_world();
    void begin_ending();
    void push_ending(const Agent &agent);
    bool over() const { return record_.ended || record_.ending; }

    // group_moves.cpp
    /// Of each object, on other nodes.
    std::uint32_t copies() const { return copies_of(record_); }
    bool has_copies() const { return copies() > 0; }
    /// The agents keep one, also on a node without others.
    bool has_mover() const { return registration().options->redundancy != "single"; }
    elastic::LocalObjects objects_here() const { return {arena_.seals(), arena_.parities()}; }
    void create_copies();
    GroupCopies::Part part_in(const elastic::World &world) const;
    void tell_copies_of_world();
    ArenaTenants tenants() const;
    void tell_arena_of_world();
    void give_back_strangers();
    void settle();
    void on_fetched(const Status &status);
    /// This node's address; none: it is not known yet.
    std::optional<std::string> own_address() const;
    void create_mover();
    void on_mover_changed();

    // group_pmix.cpp: ranks that speak PMIx
    void create_pmix();
    void tell_pmix_of_world();
    local::PmixStateT pmix_state() const;
    void on_pmix_failed(const std::string &why);
    void on_pmix_missing(const std::string &why);
    void on_pmix_aborted(const local::PmixAbortedT &aborted);
    void fail_aborted(const elastic::WorkerExit &exit);
    void on_pmix_overdue(const local::PmixOverdueT &overdue);
    void on_missing_neighbour(const local::PmixOverdueT &overdue);
    bool follows_wait(const local::PmixOverdueT &overdue);
    void on_ranks_seen(const Agent &agent, const local::RanksSeenT &seen);
    Agent *agent_of_rank(std::uint16_t local_rank);
    void look_at(const std::vector<std::uint16_t> &local_ranks);
    bool do_nothing(const std::vector<std::uint16_t> &local_ranks);
    std::optional<std::chrono::seconds> busy_limit_over(const local::PmixOverdueT &overdue) const;
    std::string idle_text(const local::PmixOverdueT &overdue) const;
    std::string busy_text(const local::PmixOverdueT &overdue, std::chrono::seconds limit) const;
    void fail_missing(Rank rank, const std::string &what);
    std::string names_of(const std::vector<std::uint16_t> &local_ranks) const;
    bool add_pmix(local::WorldPublishedT &world);

    // group_membership.cpp: what programs hear of the group
    template <typename BodyT>
    void push_to_subscribers(const BodyT &body, const GenerationId &first, const GenerationId &last);
    /// None: no ranks here.
    std::optional<local::PmixWorldT> membership() const;
    void subscribe(Worker &worker);
    void tell_losses(const elastic::Losses &losses);
    local::PmixEventT event_of(local::PmixEventKind kind, std::uint64_t number) const;
    void tell(local::PmixEventKind kind, std::uint64_t number);
    void tell_stop(GenerationId generation, const std::string &reason);

    // group_stay.cpp
    void on_leave(const Client &from, std::uint32_t id, const local::LeaveGenerationT &leave);
    bool all_stay(const Agent &agent) const;
    void note_left();
    bool is_past(const GenerationId &generation) const;
    std::set<std::uint32_t> left_of(const Agent &agent, const GenerationId &generation) const;
    void await_stayers();
    void rest_stayers();
    void stop_stayers();
    void fail_if_nobody_stops(const GenerationId &generation, std::uint32_t local_rank);
    void fail_who_left_alone();
    void on_stayed(std::uint32_t local_rank, const GenerationId &generation,
                   const std::vector<std::string> &variables);
    void end_stayers();

    // group_workers.cpp
    void on_worker_hello(const Client &from, std::uint32_t id, const local::WorkerHelloT &hello);
    void on_prepare(Worker &worker, std::uint32_t id, const local::PrepareT &prepare);
    void on_skipped(Worker &worker, TrainStep step);
    void on_begin_save(Worker &worker, std::uint32_t id, const local::BeginSaveT &begin);
    Status check_shared(const Worker &worker, const local::SealT &seal) const;
    void on_seal(Worker &worker, std::uint32_t id, local::SealT seal);
    void on_restore_kept(Worker &worker, std::uint32_t id, Rank rank);
    /// Of its own slot and the keepers'.
    void end_reading(Worker &worker);
    void on_restore(Worker &worker, std::uint32_t id);
    void refuse_restore(ConnectionId to, std::uint32_t id, const std::string &missing);
    void on_restore_done(Worker &worker, const local::RestoreDoneT &done);
    static bool was_given(const Worker &worker, std::int64_t rank);
    /// slot: where it was found; what lies elsewhere by now is not that.
    void drop_damaged(Rank rank, const CheckpointId &id, std::optional<SlotIndex> slot = {});
    void on_restore_spread(Worker &worker, std::uint32_t id);
    std::string restore_text(const Worker &worker, bool stored) const;
    void end_worker(Worker &worker);
    local::SlotGrantedT grant_message(Worker &worker, const Arena::Place &place,
                                      std::vector<SharedFd> &fds) const;
    std::vector<SharedFd> describe(Worker &worker, const std::vector<Arena::Segment> &segments,
                                   std::vector<std::unique_ptr<local::SlotSegmentT>> &out) const;
    /// Whether this worker may still save: its generation is in force and not being stopped.
    bool in_force(const Worker &worker) const;
    void poll_progress();
    void tell_progress();

    // group_world.cpp: who runs what here
    std::uint32_t ranks_of(NodeIndex node) const;
    std::uint32_t tasks_here() const;
    NodeIndex self() const { return NodeIndex(record_.registration->node_index); }
    /// This node's place in the world, none when it is a spare.
    std::optional<std::uint32_t> place_in(const elastic::World &world) const;
    std::uint32_t first_rank(const elastic::World &world, std::uint32_t place) const;
    std::uint32_t world_size(const elastic::World &world) const;
    std::optional<Rank> rank_of(std::uint32_t local_rank) const;
    local::WorldPublishedT describe_world(const elastic::World &world) const;
    std::string node_name(NodeIndex node) const;
    std::string address_of(NodeIndex node) const;

    // group_status.cpp
    local::GroupState state(const elastic::MemberView &view) const;
    std::vector<std::unique_ptr<local::RankStatusT>> rank_statuses() const;
    void describe_local_rank(local::RankStatusT &out, std::uint32_t local_rank) const;
    std::vector<std::unique_ptr<local::CheckpointStatusT>> checkpoint_statuses(
        const elastic::MemberView &view) const;
    void add_event(proto::EventKind kind, std::string text, GenerationId generation = {},
                   std::int32_t rank = -1, std::int64_t step = -1, std::int64_t duration_us = -1,
                   const std::string &node = {});
    std::string joined_text(std::uint32_t index) const;
    std::unique_ptr<local::VerifiedStatusT> verified_status() const;
    std::unique_ptr<local::CopiesStatusT> copies_status(const elastic::MemberView &view) const;
    void save_events();
    void save_world();
    void push_event(const proto::EventT &event);

    GroupServices services_;
    records::GroupRecordT record_;
    std::string key_;
    std::unique_ptr<elastic::Member> member_;
    std::optional<elastic::Promise> promise_;
    std::optional<elastic::World> world_;  ///< in force here
    std::optional<TrainStep> complete_;    ///< the newest that is known to be complete
    GenerationId stopping_;                ///< workers of this and older generations are to end
    std::map<std::uint16_t, Agent> agents_;
    std::map<ConnectionId, Worker> workers_;
    std::map<ConnectionId, Stayer> stayers_;
    /// By local rank: the generation in which its process is one that stayed, and what that is told.
    std::map<std::uint32_t, std::pair<GenerationId, std::vector<std::string>>> stayed_;
    /// Who has left this generation while it goes on, by local rank, and when that was said.
    struct Alone {
        GenerationId generation;
        struct Asked {
            EventLoop::Time first, last;  ///< without a pause in which it was gone
        };
        std::map<std::uint32_t, Asked> asked;
    } alone_;
    bool is_there(std::uint32_t local_rank, const Alone::Asked &asked) const;
    EventLoop::Time alone_limit() const;
    EventLoop::Handle alone_timer_, stay_timer_;
    Arena arena_;
    GroupVerify verify_;
    GenerationId verified_world_;                ///< verify_ has begun with
    std::unique_ptr<GroupStorage> storage_;      ///< none without a folder
    std::unique_ptr<JobDeadline> job_deadline_;  ///< on rank 0's node, with a folder
    std::unique_ptr<GroupMover> mover_;          ///< none while no mover has said hello
    std::unique_ptr<GroupTables> tables_;        ///< as copies_
    std::unique_ptr<GroupCopies> copies_;        ///< none where no copies are kept on other nodes
    std::unique_ptr<GroupCheck> check_;          ///< once it was needed
    std::unique_ptr<PmixRelay> pmix_;            ///< none with --dlrover-pmix=no
    GenerationId aborted_;                       ///< a rank here has aborted it; while abort_timer_ runs
    EventLoop::Handle abort_timer_;
    IdleRanks idle_ranks_;                    ///< for which others of this node wait in PMIx
    std::map<std::uint16_t, Activity> seen_;  ///< what agents have told of them since the last look
    GenerationId waited_for_in_;              ///< in which that was said last
    EventLoop::Time waited_for_at_{0};
    GenerationId found_missing_in_;              ///< in which one of them has failed for it
    std::optional<std::uint32_t> nodes_told_;    ///< AllocationChanged
    std::optional<EventLoop::Time> job_end_at_;  ///< JobEndsSoon
    std::unique_ptr<JobDeadline> job_end_;       ///< on the leader's node: for LocalJobEnd
    std::set<std::pair<local::PmixEventKind, std::uint64_t>> losses_told_;  ///< of the world in force
    std::map<NodeIndex, EventLoop::Time> removed_at_;  ///< or when this daemon first knew it
    bool dismissed_ = false;
    std::map<Rank, std::string> memory_refused_;  ///< to whom, and why
    bool few_slots_told_ = false;
    ProgressPages pages_;
    EventLog events_;
    std::vector<elastic::Input> early_;
    std::vector<elastic::RankProgress> progress_;
    std::map<Rank, std::string> rank_states_;
    bool ready_told_ = false;
    GenerationId stopped_told_;
    std::uint16_t last_port_ = 0;
    std::optional<elastic::Goodput> final_goodput_;
    std::map<std::string, NodeIndex, std::less<>> indices_;  ///< index_of(), for the first `indexed_` names
    std::size_t indexed_ = 0;
    std::optional<elastic::Damaged> damaged_;     ///< a former daemon's, until the member has it
    std::unique_ptr<records::SumsRecordT> sums_;  ///< a former daemon's, until the member has them
    EventLoop::Time lease_pushed_{0}, last_seen_{0}, job_asked_{0};
    std::map<std::string, std::string> addresses_;  ///< of the group's nodes; the others are linked
    std::set<std::string> unconfirmed_;             ///< where they are a former daemon has on record
    Backoff addresses_backoff_{std::chrono::seconds(2), std::chrono::seconds(30)};
    EventLoop::Handle addresses_timer_;
    std::map<std::string, std::string> switches_;  ///< that nodes hang on, as far as known
    std::unique_ptr<proto::LaunchSpecT> launch_;
    std::size_t launch_bytes_ = 0;
    std::map<unsigned, records::LaunchRecordT> launch_pieces_;  ///< while records are restored
    std::set<StepKey> checking_, offered_;  ///< steps that are to join: Slurm is asked, has agreed
    std::optional<Expansion> expansion_;
    std::uint64_t last_start_ = 0;      ///< StartStep
    std::set<JobId> coming_;            ///< companion jobs that are not in the table yet, as far as known
    std::optional<Term> coming_known_;  ///< in which reign Slurm was asked for all of them
    std::optional<std::uint32_t> coming_told_;
    EventLoop::Time leader_heard_{0};
    EventLoop::Handle coming_timer_, leader_timer_;
    bool preemption_asked_ = false;
    EventLoop::Time preemption_until_{0};
    EventLoop::Handle preemption_timer_;
    EventLoop::Time ended_at_{0}, job_pause_{0};  ///< of the group; until Slurm is asked again
    EventLoop::Handle job_timer_;
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
    EventLoop::Handle member_timer_, progress_timer_, events_timer_, member_end_timer_;
};

}  // namespace dlrover::daemon
