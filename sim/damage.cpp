// SPDX-License-Identifier: Apache-2.0
// What nodes hold turns out to be damaged, and is dropped: by a rank that restores, which fails, or by
// whoever else reads it. A leader counts on it until it has heard of it.
#include <algorithm>

#include "elastic/node_list.h"
#include "sim/simulator.h"

namespace dlrover::sim {

using namespace elastic;
using std::chrono::milliseconds;

namespace {
constexpr std::uint32_t found_by_others = 1;  ///< payload of Kind::damage

CheckpointId id_of(const Seal &s) {
    return {s.generation, s.step};
}
}  // namespace

/// Nothing is on storage. With copies also what no rank restores is found damaged: by movers and writers,
/// which read complete steps.
void Simulator::plan_damage() {
    config_.storage = poison_planned_ = false;
    storage_.newest.reset();
    storage_.next_term = {};
    if (config_.copies == 0) return;
    auto end = static_cast<std::uint64_t>(std::max<std::int64_t>(faults_end_.count(), 4000000));
    for (std::uint32_t i = damage_random_.below(12); i > 0; --i)
        push(Time(damage_random_.between(1500000, end)), Kind::damage, 0, found_by_others);
}

void Simulator::plan_restore_damage(const World &world) {
    bool tried = options_.damage && world.restore_step && now_ < faults_end_ && damage_random_.chance(50);
    if (tried) push(now_ + milliseconds(damage_random_.between(20, 400)), Kind::damage, 0);
}

void Simulator::on_damage(std::uint32_t how) {
    if (how == found_by_others)
        find_damage();
    else if (newest_world_)
        damage_restored();
}

/// Once a node has answered to a newer generation, what it holds stays what it told.
bool Simulator::may_be_damaged(const Node &n) const {
    return n.member && !n.dead && !n.ended && n.frozen_until <= now_ && is_published(n) &&
           n.keeper->generation == n.published;
}

/// A rank that restores finds it, and fails, before anything newer is complete.
void Simulator::damage_restored() {
    const World &world = *newest_world_;
    CheckpointId from{world.restore_generation, world.restore_step.value_or(TrainStep(0))};
    std::uint32_t node = world.nodes[damage_random_.below(world.nodes.size())].value();
    Node &n = nodes_[node];
    auto object = std::ranges::find_if(n.objects, [&](const Seal &s) { return id_of(s) == from; });
    bool restores = may_be_damaged(n) && n.running == world.id && !runs_[world.id].complete;
    if (!restores || !world.restore_step || object == n.objects.end()) return;
    damaged_ = {world.id, node};
    drop_object(node, Seal(*object));
    fail_worker(node, 256, damage_random_.next());
}

/// At any node, of any step that it knows to be complete: half of the time of the one that is safe.
void Simulator::find_damage() {
    std::uint32_t node = damage_random_.below(nodes_.size());
    auto choice = damage_random_.next();
    bool prefers_safe = damage_random_.chance(50);
    Node &n = nodes_[node];
    if (now_ >= faults_end_ || !may_be_damaged(n)) return;
    auto complete = n.member->view().complete_steps;
    auto fits = [&](const CheckpointId &id) {
        bool known = !complete.empty() && id.step <= complete.back() && id.generation <= n.published;
        return known && (!prefers_safe || !safe_ || safe_->id == id);
    };
    std::vector<Seal> objects;
    std::ranges::copy_if(n.objects, std::back_inserter(objects),
                         [&](const Seal &s) { return fits(id_of(s)); });
    std::vector<Parity> parities;
    for (const HeldParity &p : n.parities)
        if (p.whole && fits(p.parity.id)) parities.push_back(p.parity);
    std::size_t all = objects.size() + parities.size();
    if (all == 0) return;
    std::size_t hit = choice % all;
    if (hit < objects.size()) return drop_object(node, objects[hit]);
    drop_parity(node, parities[hit - objects.size()]);
}

void Simulator::drop_object(std::uint32_t node, const Seal &object) {
    Node &n = nodes_[node];
    trace("fault: step " + std::to_string(object.step.value()) + " of " + to_string(object.generation) +
          " of rank " + std::to_string(object.rank.value()) + " is damaged at node " + std::to_string(node));
    std::erase_if(n.objects, [&](const Seal &s) { return s.is_same(object); });
    // No copy of it that is under way comes about.
    ++n.copies.round;
    n.copies.under_way = false;
    note_drop(node, id_of(object), object.rank);
    feed(node, LocalDamaged{{id_of(object), object.rank}});
    if (n.member) feed(node, objects_of(n));
    copy_next(node);
}

void Simulator::drop_parity(std::uint32_t node, const Parity &parity) {
    Node &n = nodes_[node];
    trace("fault: a parity of step " + std::to_string(parity.id.step.value()) + " is damaged at node " +
          std::to_string(node));
    std::erase_if(n.parities, [&](const HeldParity &p) { return p.parity.is_same(parity); });
    note_drop(node, parity.id, std::nullopt);
    feed(node, objects_of(n));
}

/// What was promised of that step is over, until it is called safe again.
void Simulator::note_drop(std::uint32_t node, const CheckpointId &id, std::optional<Rank> rank) {
    drops_.push_back({node, id, rank, static_cast<std::uint64_t>((now_ + nodes_[node].offset).count())});
    if (safe_ && safe_->id == id) safe_.reset();
}

bool Simulator::was_dropped(std::uint32_t node, const CheckpointId &id, std::optional<Rank> rank) const {
    return std::ranges::any_of(drops_,
                               [&](const Drop &d) { return d.node == node && d.id == id && d.rank == rank; });
}

bool Simulator::has_lost_a_part(const CheckpointId &id) const {
    return std::ranges::any_of(drops_, [&](const Drop &d) { return d.id == id; });
}

/// Reports that a leader takes: in its term, of nodes that it has not given up. (What one of those holds is
/// as good as lost with it.)
void Simulator::note_report(std::uint32_t node, const PeerMessage &m) {
    if (contains(nodes_[node].removed, m.from)) return;
    const NodeReport *report = nullptr;
    Term term;
    if (auto *told = std::get_if<Report>(&m.message)) {
        report = &told->report;
        term = told->term;
    }
    if (auto *reply = std::get_if<HeartbeatReply>(&m.message)) {
        report = &reply->report;
        term = reply->term;
    }
    auto view = report ? nodes_[node].member->view() : MemberView{};
    if (!report || view.leader != NodeIndex(node) || view.term != term) return;
    auto &heard = nodes_[node].heard[m.from.value()];
    heard = std::max(heard, report->number);
}

/// Whether that leader may still count on something of this step that a node has dropped.
bool Simulator::counts_on_dropped(std::uint32_t leader, const CheckpointId &id) const {
    const auto &heard = nodes_[leader].heard;
    return std::ranges::any_of(drops_, [&](const Drop &d) {
        auto newest = heard.find(d.node);
        bool known = d.node == leader || (newest != heard.end() && newest->second > d.number);
        return d.id == id && !known;
    });
}

/// Whoever knows of the damage is there, and has answered: then a person decides what comes of it.
void Simulator::check_damage(const World &world) const {
    bool after = damaged_ && newest_world_ && newest_world_->id == damaged_->world;
    if (!after || runs_.at(damaged_->world).complete) return;
    bool knows = !nodes_[damaged_->node].dead && counted_on(damaged_->node, world.id);
    check(!knows || world.restore_step, "all begins anew where the only checkpoint is damaged");
}

}  // namespace dlrover::sim
