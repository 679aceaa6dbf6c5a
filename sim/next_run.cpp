// SPDX-License-Identifier: Apache-2.0
// A requeued job starts once more, after the faults: other nodes in place of the dead ones, all perhaps in
// another order. Who lives has kept its objects.
#include <algorithm>
#include <utility>

#include "sim/simulator.h"

namespace dlrover::sim {

using namespace elastic;
using std::chrono::seconds;

/// Half of the requeued jobs, once; not those that would begin when the run is about to end.
bool Simulator::plan_next_run() {
    if (next_run_begun_ || next_run_planned_ || now_ > faults_end_ + seconds(8)) return next_run_planned_;
    if (!next_random_.chance(50)) return false;
    push(std::max(now_ + seconds(3), faults_end_ + seconds(7)), Kind::next_run, 0);
    return true;
}

void Simulator::forget(Node &n) {
    n.objects.clear();
    n.parities.clear();
}

void Simulator::begin_next_run() {
    trace("the job's next run");
    next_run_planned_ = false;
    next_run_begun_ = true;
    for (Node &n : nodes_)
        if (n.dead || (n.ended && n.next_run == NextRun::none)) forget(n);
    for (std::uint32_t i = step_nodes_; i < nodes_.size(); ++i) forget(nodes_[i]);
    move_objects();
    expect_kept();
    ++config_.slurm_restart_count;
    // The run before has left its claim on storage.
    // Of a run that nobody has led storage knows nothing.
    if (config_.storage)
        storage_.next_term = std::max(storage_.next_term, Term(((acting_term_.value() >> 32) + 1) << 32));
    slurm_ = {};
    for (std::uint32_t i = step_nodes_; i < nodes_.size(); ++i) lose_node(i);
    config_.nodes.resize(step_nodes_);
    firm_added_ = 0;
    firm_counted_.clear();
    suspect_some();
    for (std::uint32_t i = 0; i < step_nodes_; ++i) begin_next_run(i);
    leave_out(choose_unfit());
    newest_world_.reset();
    safe_.reset();
    steps_since_heal_ = 0;
    torn_ = 0;
}

void Simulator::begin_next_run(std::uint32_t node) {
    Node &n = nodes_[node];
    halt_workers(node);
    GenerationId before{Term(std::uint64_t{config_.slurm_restart_count} << 32), 0};
    Node fresh;
    fresh.incarnation = n.incarnation + 1;
    fresh.offset = n.offset;
    fresh.agent = true;
    // Workers of the run before are gone, and what was to start them comes too late.
    fresh.published = fresh.started = fresh.stopping = before;
    fresh.copies.round = n.copies.round + 1;
    fresh.objects = std::move(n.objects);
    fresh.foreign = std::move(n.foreign);
    fresh.parities = std::move(n.parities);
    drop_open_rows(fresh);
    n = std::move(fresh);
    slurm_.nodes.push_back(NodeIndex(node));
    push(now_ + Duration(next_random_.between(0, 1500000)), Kind::daemon_up, node);
}

/// Slurm's order of the nodes is another one where some of them are.
void Simulator::move_objects() {
    if (next_random_.chance(50)) return;
    for (std::uint32_t i = 0; i + 1 < step_nodes_; ++i) {
        std::uint32_t other = i + next_random_.below(step_nodes_ - i);
        std::swap(nodes_[i].objects, nodes_[other].objects);
        std::swap(nodes_[i].foreign, nodes_[other].foreign);
        std::swap(nodes_[i].parities, nodes_[other].parities);
    }
}

/// Slurm has given the job nodes again that it lost.
void Simulator::suspect_some() {
    config_.lost_before.clear();
    rest_trusted_ = false;
    for (std::uint32_t i = 0; config_.checks && i < step_nodes_; ++i)
        if (!config_.nodes[i].name.empty() && checks_random_.chance(30))
            config_.lost_before.push_back(config_.nodes[i].name);
}

/// One of them fails: among four and more there are two others that do not, and can tell. Or some do that
/// say so of themselves.
std::vector<std::uint32_t> Simulator::choose_unfit() {
    if (config_.lost_before.empty()) return {};
    auto is_suspect = [&](std::uint32_t i, auto end) {
        auto begin = config_.lost_before.begin();
        return std::find(begin, end, config_.nodes[i].name) != end;
    };
    std::vector<std::uint32_t> unfit;
    if (step_nodes_ >= 4 && checks_random_.chance(40)) {
        for (std::uint32_t i = 0; i < step_nodes_ && unfit.empty(); ++i)
            if (is_suspect(i, config_.lost_before.begin() + 1)) unfit.push_back(i);
        return unfit;
    }
    if (!checks_random_.chance(50)) return {};
    for (std::uint32_t i = 0; i < step_nodes_; ++i) {
        if (!is_suspect(i, config_.lost_before.end()) || !checks_random_.chance(50)) continue;
        nodes_[i].says_so = true;
        unfit.push_back(i);
    }
    return unfit;
}

/// What they alone have kept is lost with them.
void Simulator::leave_out(const std::vector<std::uint32_t> &unfit) {
    struct Held {
        Node &node;
        decltype(Node::objects) objects;
        decltype(Node::foreign) foreign;
        decltype(Node::parities) parities;
    };
    std::vector<Held> held;
    for (std::uint32_t i : unfit) {
        Node &n = nodes_[i];
        n.unfit = true;
        held.push_back(
            {n, std::exchange(n.objects, {}), std::exchange(n.foreign, {}), std::exchange(n.parities, {})});
    }
    if (kept_ && !truly_safe(*kept_, 1)) kept_.reset();
    for (Held &h : held) {
        h.node.objects = std::move(h.objects);
        h.node.foreign = std::move(h.foreign);
        h.node.parities = std::move(h.parities);
    }
}

void Simulator::check_looked_at(const World &world) const {
    std::vector<NodeIndex> used = world.nodes;
    used.insert(used.end(), world.partners.begin(), world.partners.end());
    for (NodeIndex n : used) {
        bool suspect = std::ranges::find(config_.lost_before, config_.nodes[n.value()].name) !=
                       config_.lost_before.end();
        const Node &node = nodes_[n.value()];
        check(!suspect || n.value() >= step_nodes_ || node.looked_at || rest_trusted_,
              "a node that the run before has lost is used without a check");
        check(!node.unfit || (rest_trusted_ && !node.looked_at), "a node that has failed its check is used");
    }
}

void Simulator::expect_kept() {
    kept_.reset();
    if (safe_ && truly_safe(safe_->id, 1)) kept_ = safe_->id;
}

/// The first world of the next run goes on from what was safe, or something newer.
void Simulator::check_kept(const World &world) const {
    if (!kept_) return;
    auto run = runs_.find(kept_->generation);
    if (run == runs_.end() || run->second.world_size != size_of(world)) return;
    CheckpointId from{world.restore_generation, world.restore_step.value_or(TrainStep())};
    check(world.restore_step && world.stored_world_size == 0 && from >= *kept_,
          "what the nodes have kept of the job's run before is passed over");
}

}  // namespace dlrover::sim
