// SPDX-License-Identifier: Apache-2.0
#include "daemon/inspection.h"

#include <algorithm>
#include <set>

#include "base/units.h"

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

namespace dlrover::daemon {
namespace {

using local::FactState;

constexpr EventLoop::Time patience = std::chrono::seconds(6);
/// Whoever asks sooner again hears the same.
constexpr EventLoop::Time fresh = std::chrono::seconds(1);
constexpr std::size_t max_waiting = 16;
constexpr const char *order[] = {"slurmctld", "munge", "network", "keeper", "memory"};

std::unique_ptr<local::SiteStatusT> status_of(const SiteCapabilities &site) {
    auto status = std::make_unique<local::SiteStatusT>();
    status->slurm_version = site.version;
    status->database = site.database;
    status->job_expansion = site.job_expansion;
    status->contain = site.contain;
    status->job_shrink = site.job_shrink;
    status->node_changes = site.node_changes;
    status->requeue = site.requeue;
    status->slurmd_timeout_s = site.slurmd_timeout_s;
    status->kill_wait_s = site.kill_wait_s;
    status->cred_expire_s = site.cred_expire_s;
    status->switch_type = site.switch_type;
    return status;
}

auto place_of(const std::unique_ptr<local::FactT> &fact) {
    return std::ranges::find(order, fact->name) - std::begin(order);
}

}  // namespace

struct Inspection::Round {
    local::NodeCheckReplyT reply;
    std::set<std::string> open;
    EventLoop::Time began{0};
    void add(std::string name, FactState state, std::string text, std::string change = {}) {
        add_fact(reply.node_facts, std::move(name), state, std::move(text), std::move(change));
    }
};

Inspection::~Inspection() {
    *alive_ = false;
}

bool Inspection::ask(Answer answer) {
    if (last_ && parts_.loop.now() - last_at_ < fresh) {
        answer(*last_);
        return true;
    }
    if (waiting_.size() >= max_waiting) return false;
    waiting_.push_back(std::move(answer));
    if (!round_) begin();
    return true;
}

void Inspection::begin() {
    auto round = round_ = std::make_shared<Round>();
    round->began = parts_.loop.now();
    round->reply.node = parts_.node;
    round->reply.cluster = parts_.slurm.cluster_name();
    round->reply.version = PACKAGE_VERSION;
    round->open = {"slurmctld", "munge", "network", "keeper"};
    limit_ = parts_.loop.after(patience, [this] { finish(); });
    look_at_memory(*round);
    look_at_keeper(round);
    look_at_slurm(round);
    look_at_munge(round);
    look_at_network(round);
}

void Inspection::close(const Shared &round, const std::string &question) {
    round->open.erase(question);
    if (round == round_ && round->open.empty()) finish();
}

void Inspection::finish() {
    auto round = std::exchange(round_, nullptr);
    limit_.reset();
    for (const auto &question : round->open)
        round->add(question, FactState::Bad, "no answer within " + format_duration(patience));
    std::ranges::stable_sort(round->reply.node_facts, {}, place_of);
    last_ = std::make_unique<local::NodeCheckReplyT>(std::move(round->reply));
    last_at_ = parts_.loop.now();
    for (auto &answer : std::exchange(waiting_, {})) answer(*last_);
}

void Inspection::look_at_slurm(const Shared &round) {
    parts_.site.load([this, alive = alive_, round](const Result<SiteCapabilities> &site) {
        if (!*alive) return;
        if (site.ok()) {
            round->reply.site = status_of(*site);
            round->reply.site_facts = site_facts(*site);
            round->reply.ladder = ladder_of(*site, parts_.settings.slurm.companion_jobs);
            round->add("slurmctld", FactState::Good,
                       "answers (" + format_duration(parts_.loop.now() - round->began) + ")");
        } else if (site.status().code() == Code::unsupported) {
            round->add("slurmctld", FactState::Limited, site.status().message());
        } else {
            round->add("slurmctld", FactState::Bad, "does not answer: " + site.status().message(),
                       "check slurmctld, and slurm.conf of this node");
        }
        close(round, "slurmctld");
    });
}

void Inspection::ask_probe(const Shared &round, const std::string &node_addr, const char *question) {
    if (!parts_.probe) return close(round, question);
    parts_.probe(node_addr, [this, alive = alive_, round, question](Facts facts) {
        if (!*alive) return;
        for (auto &fact : facts) round->reply.node_facts.push_back(std::move(fact));
        close(round, question);
    });
}

/// Slurm does not answer without it either, and is not waited for.
void Inspection::look_at_munge(const Shared &round) {
    ask_probe(round, "", "munge");
}

void Inspection::look_at_network(const Shared &round) {
    parts_.slurm.load_addresses({parts_.node}, [this, alive = alive_,
                                                round](const Result<std::vector<NodeAddress>> &found) {
        if (!*alive) return;
        if (found.ok() && !found->empty()) return ask_probe(round, found->front().address, "network");
        if (found.status().code() == Code::not_found)
            round->add("network", FactState::Limited,
                       parts_.node + " is no node of this cluster: people can ask here, but no step runs");
        else
            round->add("network", FactState::Bad,
                       "this node's NodeAddr is not known: " + found.status().message());
        close(round, "network");
    });
}

void Inspection::look_at_keeper(const Shared &round) {
    if (!parts_.keeper.outlives_us()) {
        round->add("keeper", FactState::Limited,
                   "there is none: checkpoints in memory do not outlive the daemon",
                   "start the daemon by dlrover-keeper (systemctl start dlrover)");
        return close(round, "keeper");
    }
    parts_.keeper.when_stored([this, alive = alive_, round] {
        if (!*alive) return;
        round->add("keeper", FactState::Good, "holds memory and records when the daemon restarts");
        close(round, "keeper");
    });
}

void Inspection::look_at_memory(Round &round) const {
    const MemoryBudget &budget = parts_.budget;
    std::string text = format_size_bytes(budget.available()) + " available";
    std::string floor = format_size_bytes(budget.floor_bytes());
    if (budget.below_floor())
        return round.add("memory", FactState::Bad,
                         text + ", less than the " + floor + " that have to stay free",
                         "see what else uses this node's memory, or lower memory.available_floor");
    round.add("memory", FactState::Good,
              text + ", " + floor + " of it stay free; checkpoints are charged to " + parts_.charge());
}

}  // namespace dlrover::daemon
