// SPDX-License-Identifier: Apache-2.0
// The inside of Member, shared by its files: member.cpp (dispatch, local inputs), follower.cpp, leader.cpp.
#pragma once

#include <functional>
#include <map>

#include "elastic/goodput_meter.h"
#include "elastic/member.h"
#include "elastic/restart_budget.h"

namespace dlrover::elastic {

/// What only the leader has. A new leader starts with an empty one and asks.
struct Reign {
    struct Peer {
        bool answered = false;
        Time last_answer{0};
        NodeReport report;
    };
    struct Preparation {
        GenerationId id;
        std::vector<NodeIndex> nodes, spares;
        std::vector<bool> accepted;  ///< by node
        std::uint16_t port = 0;
        std::uint32_t restart_count = 0;
        std::string reason;
        Time since{0};
    };
    std::vector<Peer> peers;
    std::optional<Preparation> preparing;
    std::optional<TrainStep> complete;
    GenerationId complete_generation;
    Time began{0}, next_heartbeat{0};
    std::uint64_t sequence = 0;
    std::optional<GoodputMeter> meter;
    bool awaiting_nodes = false;  ///< a new world waits until enough nodes are ready
    std::string awaiting_reason;
};

struct Member::State {
    GroupConfig config;
    Time now{0};
    std::vector<Action> out;

    Promise promise;
    NodeReport local;
    std::optional<World> world;  ///< in force here
    bool world_adopted =
        false;  ///< reconstructed after a daemon's restart: not to be published to running workers
    bool ended = false;
    int end_code = 0;
    std::string end_message;
    Goodput goodput;

    std::optional<NodeIndex> leader;
    Time leader_contact{0}, election_deadline{0};
    std::vector<bool> votes;
    bool candidate = false;
    std::optional<Reign> reign;
    RestartBudget budget{0};

    std::uint64_t next_store = 1;
    std::map<std::uint64_t, std::function<void(std::uint16_t port)>> stores;

    // member.cpp
    void store(bool want_port, std::function<void(std::uint16_t port)> then);
    void send(NodeIndex to, Message message) { out.push_back(SendMessage{to, std::move(message)}); }
    void note(Note::Kind kind, std::string text);
    void note(Note n) { out.push_back(std::move(n)); }
    bool is_self(NodeIndex node) const { return node == config.self; }
    std::size_t node_count() const { return config.nodes.size(); }
    std::size_t majority() const { return node_count() / 2 + 1; }
    std::uint32_t world_size(const std::vector<NodeIndex> &nodes) const;
    std::optional<Rank> first_rank(const World &w, NodeIndex node) const;
    void tell_leader();
    void publish(const World &w);
    void finish_locally(int code, const std::string &message, const Goodput &g);
    void on_local(const Input &input);

    // follower.cpp
    Duration election_delay() const;
    bool may_lead() const;
    void reset_election();
    void on_tick_follower();
    void stand();
    void on_vote_request(NodeIndex from, const VoteRequest &m);
    void on_vote_reply(NodeIndex from, const VoteReply &m);
    bool accept_leader(NodeIndex from, Term term);
    void on_heartbeat(NodeIndex from, const Heartbeat &m);
    void on_prepare(NodeIndex from, const Prepare &m);
    void on_commit(NodeIndex from, const Commit &m);
    void on_finish(NodeIndex from, const Finish &m);
    void stop_before(const GenerationId &id, const std::string &reason);

    // leader.cpp
    void begin_reign();
    void end_reign(const std::string &why);
    void on_tick_leader();
    void send_heartbeats();
    void on_report(NodeIndex from, const NodeReport &report);
    void consider();
    void consider_start();
    bool adopt_running_world();
    void consider_failures();
    void consider_completion();
    void consider_finish();
    void propose(std::string reason, std::uint32_t restart_count);
    std::optional<std::vector<NodeIndex>> choose_nodes() const;
    void on_prepare_reply(NodeIndex from, const PrepareReply &m);
    void try_commit();
    std::optional<TrainStep> newest_complete(std::uint32_t ranks) const;
    void finish_group(int code, std::string message);
    void update_goodput();
};

}  // namespace dlrover::elastic
