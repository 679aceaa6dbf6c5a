// SPDX-License-Identifier: Apache-2.0
// The rules of copies on other nodes: what is called safe is, and stays so.
#include <algorithm>

#include "sim/simulator.h"

namespace dlrover::sim {

using namespace elastic;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {
std::size_t partners_each(const World &world) {
    return world.partners.size() / world.nodes.size();
}
}  // namespace

std::uint32_t Simulator::size_of(const World &world) const {
    std::uint32_t ranks = 0;
    for (NodeIndex n : world.nodes) ranks += config_.nodes[n.value()].ranks;
    return ranks;
}

/// Sealed in the newest world, or what it goes on from.
bool Simulator::in_force(const Seal &seal) const {
    if (!newest_world_ || seal.generation >= newest_world_->id) return true;
    return newest_world_->restore_step == seal.step && newest_world_->restore_generation == seal.generation;
}

/// The leader that decides this generation knows what the node holds.
bool Simulator::counted_on(std::uint32_t node, const GenerationId &generation) const {
    if (!in_job(node) || !acting_node_) return false;
    const auto &keeper = nodes_[*acting_node_].keeper;
    NodeIndex n(node);
    if (keeper && std::find(keeper->removed.begin(), keeper->removed.end(), n) != keeper->removed.end())
        return false;
    auto answers = answered_.find(generation);
    return node == *acting_node_ || (answers != answered_.end() && answers->second.contains(n));
}

void Simulator::check_partners(const World &world) const {
    check(world.partners.size() % world.nodes.size() == 0, "not as many partners for each node");
    std::size_t each = partners_each(world), others = world.nodes.size() - 1;
    check(each <= config_.copies && each >= std::min<std::size_t>(config_.copies, others),
          "too few or too many partners");
    if (codes()) check_groups(world);
    if (!newest_world_ && !codes() && options_.switches > 0) check_switches(world);
    for (NodeIndex node : world.nodes) {
        auto partners = partners_of(world, node.value());
        std::set<NodeIndex> different(partners.begin(), partners.end());
        check(different.size() == each && !different.contains(node),
              "a node's partner is itself, or twice one");
    }
}

/// Of a world that owes nothing to one before.
void Simulator::check_switches(const World &world) const {
    auto of = switches();
    std::map<std::uint32_t, std::size_t> sizes;
    for (NodeIndex node : world.nodes) ++sizes[of[node.value()]];
    bool crowded = std::ranges::any_of(sizes, [&](auto &s) { return 2 * s.second > world.nodes.size(); });
    if (crowded || world.nodes.size() <= config_.copies) return;
    for (NodeIndex node : world.nodes) {
        auto partners = partners_of(world, node.value());
        check(partners.empty() || of[partners.front().value()] != of[node.value()],
              "a node's partner hangs on its own switch, and need not");
    }
}

/// Who is sent for an object finds it there, and who has none is sent.
void Simulator::check_sources(const World &world) const {
    if (!world.restore_step || world.stored_world_size > 0) {
        check(world.sources.empty() && world.memory_world_size == 0, "sources for what is not in memory");
        return;
    }
    CheckpointId id{world.restore_generation, *world.restore_step};
    auto run = runs_.find(id.generation);
    if (config_.copies == 0 || run == runs_.end()) return;
    check_rebuilds(world);
    auto makes = [&](const ObjectSource &s) {
        const Rebuild *rebuild = names_rebuild(world, s.rank);
        return rebuild != nullptr && rebuild->node == s.node;
    };
    bool same = run->second.world_size == size_of(world);
    check(world.memory_world_size == (same ? 0 : run->second.world_size),
          "a world is told another number of ranks than those that saved what it goes on from");
    for (const ObjectSource &s : world.sources)
        check(find_object(nodes_[s.node.value()], id, s.rank) || makes(s),
              "a source of an object does not hold it");
    for (std::uint32_t r = 0; r < world.memory_world_size; ++r)
        check(r < world.sources.size() && world.sources[r].rank == Rank(r),
              "a world is not told where all objects are that another one has saved");
    std::uint32_t rank = 0;
    for (NodeIndex node : world.nodes)
        for (std::uint32_t i = 0; i < config_.nodes[node.value()].ranks; ++i, ++rank) {
            bool has = find_object(nodes_[node.value()], id, Rank(rank)) != nullptr;
            bool told = std::any_of(world.sources.begin(), world.sources.end(),
                                    [&](const ObjectSource &s) { return s.rank == Rank(rank); });
            has = has || makes({Rank(rank), node});
            check(!same || has || told, "a rank's node lacks its object, and is not told where it is");
        }
}

/// As long as no more nodes are gone than it has copies.
void Simulator::check_safe_kept(const World &world) {
    if (safe_ && covers(world.suspects, safe_->id)) safe_.reset();
    if (!safe_) return;
    if (world.restore_step && *world.restore_step >= safe_->id.step) {
        // What a world of this size has saved again takes the place of what one of another size had saved.
        bool again = world.restore_step == safe_->id.step && world.restore_generation != safe_->id.generation;
        bool fits = runs_[safe_->id.generation].world_size == size_of(world);
        if (again && !fits && runs_[world.restore_generation].world_size == size_of(world)) safe_.reset();
        return;
    }
    auto is_gone = [&](std::uint32_t n) { return !counted_on(n, world.id); };
    auto gone = static_cast<std::size_t>(std::count_if(safe_->nodes.begin(), safe_->nodes.end(), is_gone));
    bool lost = codes() ? is_lost(world) : gone > safe_->copies;
    if (options_.trace)
        trace("step " + std::to_string(safe_->id.step.value()) + " of " + to_string(safe_->id.generation) +
              " was safe, " + std::to_string(gone) + " nodes that held it are gone; " +
              std::to_string(size_of(world)) + " ranks go on from " +
              (world.restore_step ? "step " + std::to_string(world.restore_step->value()) + " of " +
                                        to_string(world.restore_generation)
                                  : "nothing"));
    check(lost, "a step that was safe is lost");
    safe_.reset();
}

/// When its workers begin, each has its object of exactly that step, or all that it needs of another size's.
/// One that was found damaged since is missed when it is to be read.
void Simulator::check_restored(std::uint32_t node, const World &world) {
    if (config_.copies == 0 || !world.restore_step || world.stored_world_size > 0) return;
    CheckpointId id{world.restore_generation, *world.restore_step};
    bool missed = false;
    for (Rank rank : restored_ranks(world, node)) {
        if (find_object(nodes_[node], id, rank)) continue;
        missed = true;
        check(was_dropped(node, id, rank), "a rank begins without the object that it goes on from");
    }
    if (missed) fail_worker(node, 1 << 8, 80);
}

/// A node that has died since is one of those whose loss it survives.
bool Simulator::truly_safe(const CheckpointId &id, std::size_t holders, bool now) {
    auto rows = true_rows(id, now);
    auto covered = [&](Rank rank) {
        return std::any_of(rows.begin(), rows.end(), [&](const TrueRow &row) {
            bool its = std::find(row.ranks.begin(), row.ranks.end(), rank) != row.ranks.end();
            return its && outlives(row, holders - 1);
        });
    };
    for (std::uint32_t r = 0; r < runs_[id.generation].world_size; ++r) {
        std::ptrdiff_t held = 0;
        for (std::uint32_t i = 0; i < nodes_.size(); ++i)
            held += find_object(nodes_[i], id, Rank(r)) &&
                    (!now || (!nodes_[i].dead && counted_on(i, newest_world_->id)));
        if (static_cast<std::size_t>(held) >= holders || covered(Rank(r))) continue;
        if (options_.trace)
            trace("step " + std::to_string(id.step.value()) + " of " + to_string(id.generation) + ", rank " +
                  std::to_string(r) + ": on " + std::to_string(held) + " nodes");
        return false;
    }
    return true;
}

void Simulator::check_safe(std::uint32_t node, const CheckpointId &id) {
    auto view = nodes_[node].member->view();
    const World &world = *view.world;
    // Safe again in another world: with that one's parities, which take the place of others.
    bool anew = codes() && safe_ && safe_->id == id && safe_->world != world.id;
    if (safe_ && safe_->id >= id && !anew) return;
    // A leader that hung repeats it when it goes on, and another one has called a newer step safe since.
    if (newest_safe_ > id) return;
    // A leader that does not know of the newest world will not be heard.
    if (!newest_world_ || world.id != newest_world_->id) return;
    // It has not heard of the damage yet: in good faith it lets go what was safe before.
    if (counts_on_dropped(node, id)) return safe_.reset();
    bool before =
        id.generation < world.id && id != CheckpointId{world.restore_generation, *world.restore_step};
    if (before && !truly_safe(id, partners_each(world) + 1)) return;  // an earlier word, repeated
    std::size_t copies = partners_each(world);
    check(truly_safe(id, copies + 1), "a step is called safe that is not on enough nodes");
    if (options_.trace)
        trace("step " + std::to_string(id.step.value()) + " of " + to_string(id.generation) + " is safe");
    safe_ = Safe{id, copies, now_, {}, {}, {}, world.id};
    newest_safe_ = std::max(newest_safe_, std::optional(id));
    if (codes()) note_rows(node, world);
    for (std::uint32_t i = 0; i < nodes_.size(); ++i)
        if (std::any_of(nodes_[i].objects.begin(), nodes_[i].objects.end(),
                        [&](const Seal &s) { return s.step == id.step && s.generation == id.generation; }))
            safe_->nodes.push_back(i);
}

/// Whoever frees slots keeps the step that is safe, as long as the nodes that hold it are heard.
void Simulator::check_freed(std::uint32_t node, const StepFreed &freed) {
    auto view = nodes_[node].member->view();
    if (view.safe && view.leader == NodeIndex(node)) check_safe(node, *view.safe);
    bool heard = newest_world_ && view.generation == newest_world_->id;
    if (!safe_ || !freed.frees(safe_->id) || !heard) return;
    std::size_t copies = std::max(safe_->copies, partners_each(*nodes_[node].member->view().world));
    // What it keeps instead may be as safe by the rows of a world before, and not be called so yet.
    bool another = truly_safe(freed.keep.value_or(freed.id), copies + 1, true);
    check(another || !truly_safe(safe_->id, copies + 1, true), "slots of the safe step are freed");
    safe_.reset();
}

/// Only where a node has no way to its partner, or copies take too long.
void Simulator::check_given_up(std::uint32_t node) {
    auto view = nodes_[node].member->view();
    bool reason = false;
    for (NodeIndex n : view.world->nodes) {
        const Copies &c = nodes_[n.value()].copies;
        reason = reason || c.exposed || now_ - c.exposed_at < seconds(3) || nodes_[n.value()].dead;
    }
    Duration since = now_ - nodes_[node].copies.since;
    check(reason || since >= config_.timings.copy_limit - milliseconds(500),
          "copies are given up without a reason");
}

/// After the faults: unless a partner is gone that takes no part in the world.
bool Simulator::safe_again() const {
    if (config_.copies == 0 || !newest_world_) return true;
    auto gone = [&](NodeIndex n) {
        const Node &partner = nodes_[n.value()];
        return partner.dead || partner.ended || !in_job(n.value());
    };
    const auto &partners = newest_world_->partners;
    if (std::any_of(partners.begin(), partners.end(), gone)) return true;
    return safe_ && safe_->id.generation == newest_world_->id && safe_->at >= healed_at_;
}

}  // namespace dlrover::sim
