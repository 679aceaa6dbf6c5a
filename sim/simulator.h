// SPDX-License-Identifier: Apache-2.0
// One run of one group from one seed: members as the product has them; network, keepers, agents, workers and
// Slurm simulated. Every rule is checked while it runs.
#pragma once

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

struct Options {
    std::uint64_t seed = 1;
    std::uint32_t nodes = 100;
    elastic::PlantedBug bug = elastic::PlantedBug::none;
    bool trace = false;
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
    };
    struct Node {
        std::optional<elastic::Member> member;
        std::optional<elastic::Promise> keeper;
        std::uint32_t incarnation = 0;
        Duration offset{0};
        Time deadline{Time::max()};
        Time frozen_until{0}, lease_until{0}, deadline_at{0}, stored_at{0}, died_at{0};
        bool dead = false, ended = false, agent = false;
        std::uint32_t side = 0;  ///< of a partition
        GenerationId running, started, published, stopping;
        std::uint32_t first_rank = 0;
        std::vector<elastic::Seal> objects;
        std::optional<CheckpointId> asked;  ///< newest that this daemon was told is wanted on storage
        Time job_read{-1};                  ///< when Slurm last answered a read of this node
        GenerationId pending_exit;          ///< not told yet: the daemon was down
        int exit_code = -1;
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
        std::optional<Time> requeued_at;
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

    // simulator.cpp
    void push(Time at, Kind kind, std::uint32_t node, std::uint32_t payload = 0);
    std::uint32_t keep(Payload p);
    void handle(const Event &e);
    void handle_local(const Event &e, const Payload &p);
    Payload take(const Event &e);
    void feed(std::uint32_t node, const elastic::Input &input);
    void act_store(std::uint32_t node, elastic::Store &store);
    void act(std::uint32_t node, elastic::Action &action);
    void start_daemon(std::uint32_t node);
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
    void on_step(const GenerationId &generation);
    void on_seal(std::uint32_t node, const GenerationId &generation, std::uint64_t step, bool accepted);
    bool whole(const Run &run) const;

    // slurm.cpp
    void slurm_arrives(std::uint32_t node, const elastic::AskSlurm &ask);
    bool slurm_does(std::uint32_t node, const elastic::AskSlurm &ask);

    // faults.cpp
    void plan_faults();
    void plan_storage();
    void look_at_storage(std::uint32_t node, const elastic::LookAtStorage &look);
    void inject(Fault fault);
    void cut_links(Fault fault, std::uint32_t node, std::uint32_t head);
    void inject_local(Fault fault, std::uint32_t node);
    void heal();
    std::uint32_t random_node();
    std::optional<std::uint32_t> leader() const;
    void freeze(std::uint32_t node);
    void lose_node(std::uint32_t node);

    // checks.cpp
    [[noreturn]] void fail(std::string text) const;
    void check(bool holds, const char *text) const {
        if (!holds) fail(text);
    }
    void check_send(std::uint32_t node, NodeIndex to, const elastic::Message &m);
    void check_acting(std::uint32_t node, Term term);
    void check_world(const elastic::World &world);
    void check_stored(const elastic::World &world);
    void check_restore(const elastic::World &world);
    void check_void(const elastic::StepsVoid &steps);
    void check_sealed(const elastic::Seal &seal);
    /// By one of the ranks.
    static bool wanted_on_storage(TrainStep step);
    void check_asked(std::uint32_t node, const CheckpointId &id);
    void check_heard(const Node &node, const std::vector<elastic::Action> &actions) const;
    void check_publish(std::uint32_t node, const elastic::World &world);
    void check_store(const elastic::Promise &promise);
    void check_ask(std::uint32_t node, const elastic::AskSlurm &ask);
    void check_note(const elastic::Note &note);
    void check_one_world(const GenerationId &generation);
    bool settled(std::string *state) const;

    Options options_;
    Random random_;
    Random storage_random_{options_.seed ^ 0x73746f72616765u};
    elastic::LocalStorage storage_;  ///< what is there before the run
    elastic::GroupConfig config_;
    Time now_{0};
    std::uint64_t order_ = 0, messages_ = 0, steps_since_heal_ = 0;
    std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
    std::vector<Payload> payloads_;
    std::vector<std::uint32_t> free_payloads_;
    std::vector<Node> nodes_;
    std::map<GenerationId, Run> runs_;
    Slurm slurm_;
    std::vector<Fault> faults_;
    Time faults_end_{0}, healed_at_{0};
    std::set<std::pair<std::uint32_t, std::uint32_t>> one_way_;  ///< cut from → to
    bool chaos_ = false;
    std::uint32_t torn_ = 0;  ///< steps to come in which a worker fails while the others seal
    bool hopeless_ = false, signalled_ = false;
    std::uint64_t last_step_ = 0;  ///< the program ends here

    // What the checks remember.
    Term acting_term_;
    std::optional<std::uint32_t> acting_node_;
    std::map<GenerationId, std::vector<NodeIndex>> prepared_;
    std::map<GenerationId, elastic::World> worlds_;
    std::optional<elastic::World> newest_world_;
    std::set<std::pair<GenerationId, std::uint32_t>> real_exits_;
};

}  // namespace dlrover::sim
