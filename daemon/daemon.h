// SPDX-License-Identifier: Apache-2.0
// dlroverd's heart: which groups there are, and who may say what to which of them.
#pragma once

#include <map>
#include <optional>
#include <set>

#include "daemon/group.h"
#include "daemon/inspection.h"
#include "daemon/joiner.h"
#include "daemon/local_server.h"
#include "daemon/query_budget.h"
#include "daemon/relay.h"
#include "daemon/standstill.h"

namespace dlrover::daemon {

class Daemon final : public LocalServer::Handler, private MemoryBudget::Kept {
  public:
    struct Options {
        std::string node;
        bool standalone = false;  ///< our own uid may register steps, and Slurm is not asked
        std::uint32_t own_uid = 0;
        std::function<std::optional<unsigned>(std::int32_t pid)> numa_node_of = {};  ///< empty: not known
        NodeProbe probe = {};
    };
    Daemon(EventLoop &loop, Options options, const Settings &settings, RecordKeeper &keeper,
           ckpt::Prefaulter &prefaulter, MemoryBudget &budget, SlurmClient &slurm,
           transport::PeerNetwork &peers, std::function<std::uint16_t()> free_port);
    ~Daemon() override;

    /// Once, before anything else comes: what the keeper held, and the way to the processes of this node.
    void start(std::vector<KeptRecord> kept, LocalPort &port);
    std::size_t group_count() const { return groups_.size(); }

    void on_message(const Client &from, local::MessageT message) override;
    void on_closed(const Client &client) override;

  private:
    using Key = std::pair<JobId, StepId>;
    GroupServices services();
    Group *find(std::uint32_t job_id, std::uint32_t step_id);
    Group *group_of(ConnectionId connection);
    void restore(std::vector<KeptRecord> kept);
    void say_ready();

    // registration
    void on_register(const Client &from, std::uint32_t id, local::RegisterStepT message);
    void find_memory_spec();
    bool charges_jobs() const;
    std::string charge_in_words() const;
    void accept_step(ConnectionId to, std::uint32_t id, proto::StepRegistrationT step, std::string user,
                     std::unique_ptr<proto::LaunchSpecT> launch);
    void on_end_step(const Client &from, std::uint32_t id, const local::EndStepT &end);
    bool may_register(const Client &client) const;

    // steps of companion jobs (joining.cpp)
    using Launch = std::unique_ptr<proto::LaunchSpecT>;
    void on_register_joiner(ConnectionId to, std::uint32_t id, proto::StepRegistrationT step, Launch launch,
                            const proto::JoinTargetT &target);
    void accept_joiner(ConnectionId to, std::uint32_t id, Joiner::Request request, const SlurmJob &own,
                       const proto::JoinTargetT &target);
    Status make_way(Key key);
    Status take_in(Joiner::Request &request, join::WordT word);
    void on_join_word(const std::string &node, const transport::PeerEnvelope &envelope);
    Launch usable(Launch launch) const;

    // agents and workers
    void on_agent(const Client &from, local::MessageT message);
    void on_worker(const Client &from, local::MessageT message);
    void on_writer(const Client &from, const local::MessageT &message);
    void on_mover(const Client &from, const local::MessageT &message);
    void on_pmix(const Client &from, const local::MessageT &message);
    /// Reads on from the connection of a message that was just handled when what it put on record is stored:
    /// a flood of them waits in its sender's socket, not in the keeper's queue.
    void pace(ConnectionId connection);
    /// The group that the connection has joined, or joins by `hello` (none: it was another message); answered
    /// where there is none.
    template <typename HelloT>
    Group *group_for(const Client &from, std::uint32_t id, const HelloT *hello, const char *name);
    /// Joins the connection to its group, if it may; answers otherwise.
    Group *admit(const Client &from, std::uint32_t id, std::uint32_t job_id, std::uint32_t step_id);

    // people (queries.cpp)
    void on_query(const Client &from, local::MessageT message);
    std::vector<const Group *> visible(std::uint32_t uid, std::uint32_t job_id) const;
    std::set<std::string> joined_nodes(std::uint32_t uid, std::uint32_t job_id) const;
    std::set<std::string> member_nodes(std::uint32_t uid, std::uint32_t job_id) const;
    local::StatusReplyT status_for(std::uint32_t uid, std::uint32_t job_id) const;
    local::OutcomeReplyT outcome_for(std::uint32_t uid, const local::OutcomeRequestT &request) const;
    local::EventsReplyT events_for(std::uint32_t uid, std::uint32_t job_id, std::uint32_t step_id) const;

    void answer(const Client &from, local::MessageT message);
    std::optional<local::MessageT> answer_query(std::uint32_t uid, const local::MessageT &message);
    Group *commanded(std::uint32_t uid, std::uint32_t job_id, std::uint32_t step_id) const;
    local::RollbackReplyT roll_back(std::uint32_t uid, const local::RollbackRequestT &request);
    local::ScaleReplyT scale(std::uint32_t uid, const local::ScaleRequestT &request);
    void on_peer_request(const std::string &node, const transport::PeerEnvelope &envelope);

    void on_peer(const std::string &node, transport::PeerEnvelope envelope);

    // what ended groups keep for their jobs' next runs
    MemoryBudget::Holding held(std::optional<std::uint32_t> uid) const override;
    bool release(std::optional<std::uint32_t> uid) override;
    void check_kept();
    void ask_about(Key key);
    void watch_floor();
    void watch_own_time();
    std::unique_ptr<Group> take_kept(Key key, const proto::StepRegistrationT &step,
                                     const std::string &lineage);
    Status room_for(std::uint32_t uid);

    // the dead
    void sweep();
    void schedule_sweep();
    void forget_oldest_ended();
    std::size_t groups_of(std::uint32_t uid) const;
    void check_step(Key key);
    void forget(Key key);
    void release_key(Key key);

    EventLoop &loop_;
    Options options_;
    const Settings &settings_;
    RecordKeeper &keeper_;
    ckpt::Prefaulter &prefaulter_;
    MemoryBudget &budget_;
    SlurmClient &slurm_;
    transport::PeerNetwork &peers_;
    std::function<std::uint16_t()> free_port_;
    Site site_{loop_, slurm_};
    Inspection inspection_{{loop_, slurm_, site_, keeper_, budget_, settings_, options_.node, options_.probe,
                            [this] { return charge_in_words(); }}};
    Relay relay_{loop_, slurm_, peers_, options_.node};
    Joiner joiner_{loop_, slurm_, peers_, options_.node, [this](Joiner::Request &request, join::WordT word) {
                       return take_in(request, std::move(word));
                   }};
    QueryBudget query_budget_;
    LocalPort *port_ = nullptr;
    std::map<Key, std::unique_ptr<Group>> groups_;
    std::map<Key, Key> aliases_;           ///< the step by which this node has joined -> the group
    std::map<ConnectionId, Key> members_;  ///< of agents, workers, writers, movers
    bool memory_spec_known_ = false;
    std::uint64_t memory_spec_bytes_ = 0;  ///< MemSpecLimit of this node; 0: none
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
    Standstill standstill_;
    EventLoop::Handle sweep_timer_, ready_timer_, floor_timer_, own_timer_;
};

}  // namespace dlrover::daemon
