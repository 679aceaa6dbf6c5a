// SPDX-License-Identifier: Apache-2.0
// What goes wrong, and when: dense, from the seed; then everything that can heal heals.
#include <algorithm>
#include <csignal>
#include <utility>

#include "sim/simulator.h"

namespace dlrover::sim {

using namespace elastic;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {
/// The patience with a daemon that fell, Slurm's silence, a new world.
constexpr Duration larger_side_limit = milliseconds(9000);
}  // namespace

void Simulator::plan_faults() {
    if (plan_cut() || plan_pairs()) return;
    std::uint32_t count = calm_start_ ? 0 : 1 + random_.below(6);
    Time at = milliseconds(random_.between(0, 2500));
    for (std::uint32_t i = 0; i < count; ++i) {
        faults_.push_back(static_cast<Fault>(random_.below(static_cast<std::uint32_t>(Fault::count))));
        push(at, Kind::fault, 0, static_cast<std::uint32_t>(faults_.size() - 1));
        at += milliseconds(random_.chance(40) ? random_.between(0, 60) : random_.between(60, 2500));
    }
    faults_end_ =
        std::max({at, copies_end_, joins_end_, pairs_end_}) + milliseconds(random_.between(500, 5000));
    // Longer than anybody waits for the others.
    if (cuts_random_.chance(25)) faults_end_ += milliseconds(cuts_random_.between(3000, 30000));
    push(faults_end_, Kind::heal, 0);
    push(faults_end_, Kind::check, 0);
}

/// In a twelfth of the runs only this: the smaller side dies or is cut off, and the larger one has to do
/// without Slurm, sometimes without its leader as well.
bool Simulator::plan_cut() {
    auto count = static_cast<std::uint32_t>(nodes_.size());
    if (count < 3 || config_.replacements || !cuts_random_.chance(8)) return false;
    smaller_side_ = 1 + cuts_random_.below((count - 1) / 2);
    Time at = milliseconds(cuts_random_.between(3000, 5000));
    push(at, Kind::cut, 0);
    push(at + larger_side_limit, Kind::cut_check, 0);
    if (cuts_random_.chance(30)) {
        faults_.push_back(Fault::leader_node);
        push(at + milliseconds(cuts_random_.between(0, 8000)), Kind::fault, 0, 0);
    }
    faults_end_ = at + milliseconds(cuts_random_.between(9500, 40000));
    push(faults_end_, Kind::heal, 0);
    push(faults_end_, Kind::check, 0);
    return true;
}

void Simulator::cut_smaller_side() {
    auto count = static_cast<std::uint32_t>(nodes_.size());
    std::uint32_t first = cuts_random_.below(count);
    bool dies = cuts_random_.chance(50), slurm_is_down = cuts_random_.chance(50);
    for (std::uint32_t i = 0; i < count; ++i) {
        std::uint32_t node = (first + i) % count;
        bool smaller = i < smaller_side_;
        if (smaller && dies) lose_node(node);
        nodes_[node].side = smaller ? 1 : 2;
    }
    if (newest_world_) world_before_cut_ = newest_world_->nodes;
    slurm_.mode = slurm_is_down ? Slurm::Mode::unreachable : Slurm::Mode::well;
    slurm_.unreachable_side = 2;
    trace("fault: the smaller side goes");
}

/// Some while nothing else goes wrong, most amid faults.
void Simulator::plan_rollbacks() {
    std::uint32_t count = 1 + rollback_random_.below(4);
    auto end = static_cast<std::uint64_t>(faults_end_.count());
    for (std::uint32_t i = 0; i < count; ++i)
        push(Time(rollback_random_.between(3000000, std::max<std::uint64_t>(end, 6000000))), Kind::rollback,
             0);
}

/// At any node, of any step so far.
void Simulator::roll_back() {
    std::uint32_t node = rollback_random_.below(nodes_.size());
    auto choice = rollback_random_.next();
    const Node &n = nodes_[node];
    if (!newest_world_ || !n.member || n.dead || n.frozen_until > now_) return;
    TrainStep to(choice % (runs_[newest_world_->id].step + 1));
    trace("fault: a person wants step " + std::to_string(to.value()) + " back");
    rollbacks_[newest_world_->id].insert(to);
    feed(node, LocalRollback{{newest_world_->id, to}});
}

std::uint32_t Simulator::random_node() {
    return random_.below(nodes_.size());
}

std::optional<std::uint32_t> Simulator::leader() const {
    std::optional<std::uint32_t> best;
    Term term;
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
        if (!nodes_[i].member) continue;
        auto view = nodes_[i].member->view();
        if (view.leader != NodeIndex(i) || view.term < term) continue;
        best = i;
        term = view.term;
    }
    return best;
}

void Simulator::freeze(std::uint32_t node) {
    Time until = now_ + milliseconds(random_.between(300, 6000));
    nodes_[node].frozen_until = std::max(nodes_[node].frozen_until, until);
}

void Simulator::lose_node(std::uint32_t node) {
    crash_daemon(node);
    halt_workers(node);
    nodes_[node].dead = true;
    nodes_[node].died_at = now_;
}

void Simulator::daemon_falls(std::uint32_t node) {
    crash_daemon(node);
    push(now_ + milliseconds(random_.chance(80) ? random_.between(20, 600) : random_.between(600, 4000)),
         Kind::daemon_up, node);
}

void Simulator::cut_links(Fault fault, std::uint32_t node, std::uint32_t head) {
    auto count = static_cast<std::uint32_t>(nodes_.size());
    if (fault == Fault::one_way) {
        for (std::uint32_t i = 0; i < count; ++i)
            if (random_.chance(60))
                one_way_.insert(random_.chance(50) ? std::pair(head, i) : std::pair(i, head));
        return;
    }
    std::uint32_t side = fault == Fault::cut_leader ? 2 : 1;
    std::uint32_t cut = fault == Fault::cut_leader ? 1 : 1 + random_.below(count);
    std::uint32_t first = fault == Fault::cut_leader ? head : node;
    for (std::uint32_t i = 0; i < cut; ++i) nodes_[(first + i) % count].side = side;
    if (random_.chance(40)) slurm_.unreachable_side = side;
}

void Simulator::inject_local(Fault fault, std::uint32_t node) {
    Node &n = nodes_[node];
    bool up = n.member && !n.dead;
    if (fault == Fault::agent) {
        n.agent = false;
        halt_workers(node);
        if (up) feed(node, LocalReady{false, {}});
    } else if (fault == Fault::signal) {
        if (!random_.chance(30) || !up) return;
        signalled_ = true;
        feed(node, LocalSignal{SIGTERM});
    } else if (up && n.running != GenerationId{}) {
        on_seal(node, GenerationId{Term(0), 0}, runs_[n.running].step + 1, false);
    }
}

void Simulator::inject(Fault fault) {
    static const char *const names[] = {
        "worker", "workers",       "daemon",    "leader_daemon", "node",    "leader_node", "world_half",
        "freeze", "freeze_leader", "partition", "cut_leader",    "one_way", "chaos",       "slurm",
        "agent",  "hopeless",      "signal",    "stale_seal",    "torn"};
    if (options_.trace) trace(std::string("fault ") + names[static_cast<int>(fault)]);
    std::uint32_t node = random_node();
    std::uint32_t head = leader().value_or(node);
    switch (fault) {
        case Fault::worker:
            return fail_worker(node, SIGKILL, random_.next());
        case Fault::workers:
            for (std::uint32_t i = 0; i < 3; ++i) fail_worker(random_node(), 1 << 8, random_.next());
            return;
        case Fault::daemon:
            return daemon_falls(node);
        case Fault::leader_daemon:
            return daemon_falls(head);
        case Fault::node:
            return lose_node(node);
        case Fault::leader_node:
            return lose_node(head);
        case Fault::world_half:
            for (std::uint32_t i = 0; i < nodes_.size() / 2; ++i)
                lose_node((node + i) % static_cast<std::uint32_t>(nodes_.size()));
            return;
        case Fault::freeze:
            return freeze(node);
        case Fault::freeze_leader:
            return freeze(head);
        case Fault::partition:
        case Fault::cut_leader:
        case Fault::one_way:
            return cut_links(fault, node, head);
        case Fault::chaos:
            chaos_ = true;
            return;
        case Fault::slurm:
            slurm_.mode = static_cast<Slurm::Mode>(1 + random_.below(4));
            return;
        case Fault::hopeless:
            hopeless_ = random_.chance(30);
            return;
        case Fault::agent:
        case Fault::signal:
        case Fault::stale_seal:
            return inject_local(fault, node);
        case Fault::torn:
            torn_ = 2 + random_.below(4);
            return;
        case Fault::count:
            return;
    }
}

void Simulator::heal() {
    trace("heal");
    chaos_ = false;
    one_way_.clear();
    if (pair_cut_) pair_cut_->until = std::min(pair_cut_->until, now_);
    slurm_.mode = Slurm::Mode::well;
    slurm_.unreachable_side = 0;
    healed_at_ = now_;
    slurm_.next_run_at = std::min(slurm_.next_run_at, now_ + next_run_comes);
    for (std::uint32_t i : std::exchange(slurm_.to_end, {})) end_processes(i);
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
        nodes_[i].side = 0;
        if (!nodes_[i].member && !nodes_[i].dead) push(now_ + milliseconds(10), Kind::daemon_up, i);
    }
    tell_links();
}

}  // namespace dlrover::sim
