// SPDX-License-Identifier: Apache-2.0
// Parities on other nodes, and objects that are made again from them: every object is folded in for itself,
// and any of the nodes may be gone before a row is whole.
#include <algorithm>

#include "elastic/coding.h"
#include "sim/simulator.h"

namespace dlrover::sim {

using namespace elastic;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {
constexpr std::uint64_t rebuild_attempts = 30;  ///< of an object, where a part's node does not answer

CheckpointId id_of(const Seal &s) {
    return {s.generation, s.step};
}
}  // namespace

bool Simulator::HeldParity::is_true() const {
    auto once = [&](Rank rank) {
        auto it = folds.find(rank);
        return it != folds.end() && it->second % 2 == 1;
    };
    return whole && std::all_of(parity.ranks.begin(), parity.ranks.end(), once);
}

/// Of a stream of its own; a third of the runs that have copies have parities instead.
void Simulator::plan_parities() {
    config_.code = options_.code.value_or(CodeSize{});
    if (!options_.code && !options_.copies && config_.copies > 0 && codes_random_.chance(33))
        config_.code = {2 + codes_random_.below(3), config_.copies};
    if (!codes()) return;
    config_.copies = config_.code.parity;
    config_.timings.copy_limit = seconds(8);
    code_fault_ = static_cast<CodeFault>(codes_random_.below(static_cast<std::uint32_t>(CodeFault::count)));
    if (codes_random_.chance(40)) return;
    Time at = milliseconds(codes_random_.between(1500, 6000));
    push(at, Kind::code_fault, 0, static_cast<std::uint32_t>(CodeFault::group));
    copies_end_ = std::max(copies_end_, at + milliseconds(2000));
}

/// The newest generation that this node knows is in force here.
bool Simulator::is_published(const Node &n) const {
    return n.published > n.stopping && worlds_.contains(n.published);
}

Simulator::HeldParity *Simulator::find_parity(Node &n, const Parity &parity) {
    auto it = std::find_if(n.parities.begin(), n.parities.end(),
                           [&](const HeldParity &p) { return p.parity.is_same(parity); });
    return it == n.parities.end() ? nullptr : &*it;
}

LocalObjects Simulator::objects_of(const Node &n) const {
    LocalObjects all{n.objects};
    for (const HeldParity &p : n.parities)
        if (p.whole) all.parities.push_back(p.parity);
    return all;
}

void Simulator::drop_open_rows(Node &n) const {
    std::erase_if(n.parities, [](const HeldParity &p) { return !p.whole; });
}

// ---- a row comes into being ----

Simulator::Taken Simulator::take_part(std::uint32_t node, const Payload &p) {
    Node &n = nodes_[p.other];
    CheckpointId id = id_of(p.object);
    bool fits = is_published(n) && n.published == nodes_[node].published && n.copies.step == id;
    if (!fits) return Taken::no;
    auto row = row_of(worlds_.at(n.published), config_.nodes, id, p.object.rank);
    auto place = std::find(row->holders.begin(), row->holders.end(), NodeIndex(p.other));
    check(place != row->holders.end(), "a parity is to be at a node that keeps none of its group");
    Parity parity{id, p.object.world_size, static_cast<std::uint32_t>(place - row->holders.begin()),
                  row->ranks};
    HeldParity *held = find_parity(n, parity);
    if (held && held->whole) return Taken::held;
    if (held && held->folds.contains(p.object.rank) && options_.bug != PlantedBug::folded_twice)
        return Taken::held;
    if (n.copies.folding) return Taken::no;
    if (!held) held = &n.parities.emplace_back(HeldParity{parity, ++rows_begun_, {}, false});
    n.copies.folding = true;
    Payload fold = p;
    fold.other = node;
    fold.other_incarnation = nodes_[node].incarnation;
    fold.row = held->number;
    Duration takes = milliseconds(codes_random_.between(1, 60));
    if (code_fault_ != CodeFault::in_rebuild)
        plan_code_fault(code_fault_, code_fault_ == CodeFault::member_in_fold ? node : p.other, takes, 5);
    push(now_ + takes, Kind::folded, p.other, keep(std::move(fold)));
    return Taken::later;
}

/// At the node that keeps the parity. Its answer is heard at once, or never.
void Simulator::on_folded(std::uint32_t node, const Payload &p) {
    Node &n = nodes_[node];
    n.copies.folding = false;
    auto it = std::find_if(n.parities.begin(), n.parities.end(),
                           [&](const HeldParity &held) { return held.number == p.row && !held.whole; });
    if (it == n.parities.end()) return;  // void
    ++it->folds[p.object.rank];
    it->parity.to_storage = it->parity.to_storage || p.object.to_storage;
    std::size_t wanted = it->parity.ranks.size();
    if (options_.bug == PlantedBug::parity_called_whole_too_early) wanted = (wanted + 1) / 2;
    it->whole = it->folds.size() >= wanted;
    if (options_.trace)
        trace("node " + std::to_string(node) + " folds step " + std::to_string(p.object.step.value()) +
              " of rank " + std::to_string(p.object.rank.value()) + " into parity " +
              std::to_string(it->parity.index) + (it->whole ? ", which is whole" : ""));
    if (it->whole) feed(node, LocalParity{Parity(it->parity)});
    Copies &c = nodes_[p.other].copies;
    if (c.round != p.number || !answers(node, p)) return;
    c.done.insert({p.object.rank, node});
    ++c.round;
    c.under_way = false;
    copy_next(p.other);
}

/// Whoever has had all answers does not know that a row was void afterwards.
void Simulator::plan_recheck(std::uint32_t node) {
    if (!codes() && !options_.damage) return;
    Payload p;
    p.number = ++nodes_[node].copies.round;
    push(now_ + seconds(3), Kind::recheck, node, keep(std::move(p)));
}

void Simulator::on_recheck(std::uint32_t node, const Payload &p) {
    Copies &c = nodes_[node].copies;
    if (p.number != c.round || c.under_way || !c.step) return;
    // It may lose a part.
    if (nodes_[node].member->view().covered >= c.step) return options_.damage ? plan_recheck(node) : void();
    c.done.clear();
    copy_next(node);
}

/// Rows of another world are not needed any more once those of this one are there.
void Simulator::hear_safe(std::uint32_t node) {
    Node &n = nodes_[node];
    if (n.parities.empty() || !is_published(n)) return;
    auto safe = n.member->view().covered;
    if (!safe || n.safe_seen == std::pair(n.published, *safe)) return;
    n.safe_seen = {n.published, *safe};
    const World &world = worlds_.at(n.published);
    RowBook rows(world, config_.nodes);
    auto dropped = std::erase_if(n.parities, [&](const HeldParity &p) {
        return p.parity.id == *safe && !is_wanted(world, rows, p.parity);
    });
    if (options_.trace && dropped > 0)
        trace("node " + std::to_string(node) + " drops parities of other rows");
    if (dropped > 0) push(now_, Kind::objects, node);
}

// ---- an object is made again ----

bool Simulator::is_rebuilt(const World &world, Rank rank, std::uint32_t node) const {
    const auto &open = nodes_[node].copies.rebuilding;
    return names_rebuild(world, rank) && std::find(open.begin(), open.end(), rank) != open.end();
}

const Rebuild *Simulator::names_rebuild(const World &world, Rank rank) {
    auto it = std::find_if(world.rebuilds.begin(), world.rebuilds.end(),
                           [&](const Rebuild &r) { return r.rank == rank; });
    return it == world.rebuilds.end() ? nullptr : &*it;
}

/// Where it is for a rank of its own, this waits for it as for what it fetches.
void Simulator::begin_rebuilds(std::uint32_t node, const World &world) {
    Node &n = nodes_[node];
    n.copies.rebuilding.clear();
    auto mine = restored_ranks(world, node);
    for (const Rebuild &r : world.rebuilds) {
        CheckpointId id{world.restore_generation, *world.restore_step};
        if (r.node != NodeIndex(node) || find_object(n, id, r.rank)) continue;
        n.copies.rebuilding.push_back(r.rank);
        ObjectSource self{r.rank, NodeIndex(node)};
        bool waits = std::find(mine.begin(), mine.end(), r.rank) != mine.end();
        auto &fetching = n.copies.fetching;
        if (waits && std::find(fetching.begin(), fetching.end(), self) == fetching.end())
            fetching.push_back(self);
    }
}

void Simulator::rebuild(std::uint32_t node, Rank rank, std::uint64_t attempt) {
    Payload p;
    p.generation = nodes_[node].published;
    p.object.rank = rank;
    p.number = attempt;
    Duration takes = copy_time() + copy_time();
    if (code_fault_ == CodeFault::in_rebuild) {
        auto count = static_cast<std::uint32_t>(nodes_.size());
        plan_code_fault(code_fault_, (node + codes_random_.below(count)) % count, takes, 50);
    }
    push(now_ + takes, Kind::rebuilt, node, keep(std::move(p)));
}

bool Simulator::part_is_there(const CheckpointId &id, const Rebuild &r, const RebuildPart &part) const {
    const Node &n = nodes_[part.node.value()];
    if (part.unit < r.row.size()) return find_object(n, id, r.row[part.unit]) != nullptr;
    return std::any_of(n.parities.begin(), n.parities.end(), [&](const HeldParity &p) {
        return p.whole && p.parity.id == id && p.parity.ranks == r.row &&
               p.parity.index + r.row.size() == part.unit;
    });
}

bool Simulator::part_was_dropped(const CheckpointId &id, const Rebuild &r, const RebuildPart &part) const {
    return was_dropped(part.node.value(), id,
                       part.unit < r.row.size() ? std::optional(r.row[part.unit]) : std::nullopt);
}

void Simulator::on_rebuilt(std::uint32_t node, const Payload &p) {
    Node &n = nodes_[node];
    auto &open = n.copies.rebuilding;
    auto it = std::find(open.begin(), open.end(), p.object.rank);
    if (n.published != p.generation || n.stopping >= p.generation || it == open.end()) return;
    const World &world = worlds_.at(p.generation);
    const Rebuild &r = *names_rebuild(world, p.object.rank);
    CheckpointId id{world.restore_generation, *world.restore_step};
    bool all = true, dead = false;
    for (const RebuildPart &part : r.parts) {
        Payload from;
        from.other = part.node.value();
        from.other_incarnation = nodes_[from.other].incarnation;
        bool heard = from.other == node || answers(node, from);
        if (options_.trace)
            trace("part " + std::to_string(part.unit) + "/" + std::to_string(r.row.size()) + " of rank " +
                  std::to_string(r.rank.value()) + " at node " + std::to_string(part.node.value()) +
                  (part_is_there(id, r, part) ? "" : " MISSING"));
        check(!heard || p.generation != newest_world_->id || part_is_there(id, r, part) ||
                  part_was_dropped(id, r, part),
              "an object is to be made of a part that is not there");
        all = all && heard && part_is_there(id, r, part);
        dead = dead || nodes_[from.other].dead;
    }
    if (all) return take_rebuilt(node, r);
    if (!dead && p.number < rebuild_attempts) return rebuild(node, r.rank, p.number + 1);
    open.erase(it);  // whoever waits for it fails
    bool waits = std::find(n.copies.fetching.begin(), n.copies.fetching.end(),
                           ObjectSource{r.rank, NodeIndex(node)}) != n.copies.fetching.end();
    if (waits && n.running == p.generation) fail_worker(node, 1 << 8, 79);
}

void Simulator::take_rebuilt(std::uint32_t node, const Rebuild &r) {
    Node &n = nodes_[node];
    GenerationId generation = n.published;
    const World &world = worlds_.at(generation);
    CheckpointId id{world.restore_generation, *world.restore_step};
    for (const RebuildPart &part : r.parts)
        for (const HeldParity &p : nodes_[part.node.value()].parities)
            check(p.parity.id != id || p.parity.ranks != r.row ||
                      p.parity.index + r.row.size() != part.unit || p.is_true(),
                  "an object is made again with other bytes than were saved");
    std::erase(n.copies.rebuilding, r.rank);
    std::erase(n.copies.fetching, ObjectSource{r.rank, NodeIndex(node)});
    std::uint32_t size = world.memory_world_size > 0 ? world.memory_world_size : size_of(world);
    bool asks = wanted_on_storage(id.step) && id.step.value() % size == r.rank.value();
    if (!find_object(n, id, r.rank)) take_object(node, Seal{id.step, r.rank, size, id.generation, asks});
    if (!n.member) return;
    if (n.running == generation && n.copies.fetching.empty()) check_restored(node, world);
    copy_next(node);
}

// ---- faults ----

void Simulator::plan_code_fault(CodeFault fault, std::uint32_t node, Duration takes, std::uint32_t percent) {
    if (now_ >= faults_end_ || fault == CodeFault::none || !codes_random_.chance(percent)) return;
    push(now_ + takes / 2, Kind::code_fault, node, static_cast<std::uint32_t>(fault));
    code_fault_ = CodeFault::none;
}

void Simulator::inject_code_fault(CodeFault fault, std::uint32_t node) {
    if (smaller_side_ > 0) return;  // nothing else goes wrong
    if (fault == CodeFault::group) return lose_group();
    if (nodes_[node].dead) return;
    trace("fault: in a fold, or in what is made again");
    if (fault == CodeFault::mover_in_fold)
        drop_open_rows(nodes_[node]);
    else if (fault == CodeFault::holder_daemon_in_fold)
        daemon_falls(node);
    else
        lose_node(node);
}

void Simulator::lose_group() {
    if (!newest_world_ || newest_world_->groups.empty()) return;
    const World &world = *newest_world_;
    std::uint32_t group = world.groups[codes_random_.below(world.groups.size())];
    std::set<std::uint32_t> nodes;
    for (std::size_t i = 0; i < world.nodes.size(); ++i) {
        if (world.groups[i] != group) continue;
        nodes.insert(world.nodes[i].value());
        for (NodeIndex holder : partners_of(world, world.nodes[i].value())) nodes.insert(holder.value());
    }
    std::vector<std::uint32_t> left(nodes.begin(), nodes.end());
    trace("fault: nodes of one coding group are lost");
    for (std::uint32_t i = 0; i < config_.code.parity && !left.empty(); ++i) {
        std::size_t hit = codes_random_.below(left.size());
        if (!nodes_[left[hit]].dead) lose_node(left[hit]);
        left.erase(left.begin() + static_cast<std::ptrdiff_t>(hit));
    }
}

// ---- what is true ----

std::vector<Simulator::TrueRow> Simulator::true_rows(const CheckpointId &id, bool now) const {
    std::map<std::vector<Rank>, TrueRow> rows;
    auto counts = [&](std::uint32_t i) {
        return !now || (!nodes_[i].dead && counted_on(i, newest_world_->id));
    };
    for (std::uint32_t i = 0; i < nodes_.size(); ++i)
        for (const HeldParity &p : nodes_[i].parities) {
            if (p.parity.id != id || !p.is_true() || !counts(i)) continue;
            TrueRow &row = rows[p.parity.ranks];
            row.ranks = p.parity.ranks;
            row.units[static_cast<std::uint32_t>(row.ranks.size()) + p.parity.index].insert(i);
        }
    std::vector<TrueRow> all;
    for (auto &[ranks, row] : rows) {
        for (std::uint32_t unit = 0; unit < ranks.size(); ++unit)
            for (std::uint32_t i = 0; i < nodes_.size(); ++i)
                if (counts(i) && find_object(nodes_[i], id, ranks[unit])) row.units[unit].insert(i);
        all.push_back(std::move(row));
    }
    return all;
}

/// Every choice of so many nodes is tried.
bool Simulator::outlives(const TrueRow &row, std::size_t losses) {
    std::set<std::uint32_t> nodes;
    for (const auto &[unit, holders] : row.units) nodes.insert(holders.begin(), holders.end());
    if (losses == 0 || nodes.empty()) return row.units.size() >= row.ranks.size();
    for (std::uint32_t lost : nodes) {
        TrueRow left = row;
        for (auto &[unit, holders] : left.units) holders.erase(lost);
        std::erase_if(left.units, [](const auto &entry) { return entry.second.empty(); });
        if (!outlives(left, losses - 1)) return false;
    }
    return true;
}

/// Where the safe step is: other worlds' rows do not count any more where this one's are there.
void Simulator::note_rows(std::uint32_t node, const World &world) {
    std::uint32_t size = runs_[safe_->id.generation].world_size;
    safe_->held.assign(size, {});
    for (std::uint32_t r = 0; r < size; ++r)
        for (std::uint32_t i = 0; i < nodes_.size(); ++i)
            if (find_object(nodes_[i], safe_->id, Rank(r))) safe_->held[r].insert(i);
    RowBook book(world, config_.nodes);
    bool covered = nodes_[node].member->view().covered == safe_->id;
    for (TrueRow &row : true_rows(safe_->id, false))
        if (!covered || book.has({safe_->id, size, 0, row.ranks})) safe_->rows.push_back(std::move(row));
}

/// With the nodes that are gone for whoever has decided this world.
bool Simulator::is_lost(const World &world) const {
    auto is_there = [&](const std::set<std::uint32_t> &nodes) {
        return std::any_of(nodes.begin(), nodes.end(),
                           [&](std::uint32_t n) { return counted_on(n, world.id); });
    };
    auto decodes = [&](const TrueRow &row, Rank rank) {
        auto left = std::count_if(row.units.begin(), row.units.end(),
                                  [&](const auto &unit) { return is_there(unit.second); });
        bool its = std::find(row.ranks.begin(), row.ranks.end(), rank) != row.ranks.end();
        return its && static_cast<std::size_t>(left) >= row.ranks.size();
    };
    for (std::uint32_t r = 0; r < safe_->held.size(); ++r)
        if (!is_there(safe_->held[r]) &&
            std::none_of(safe_->rows.begin(), safe_->rows.end(),
                         [&](const TrueRow &row) { return decodes(row, Rank(r)); }))
            return true;
    return false;
}

void Simulator::check_groups(const World &world) const {
    auto each = world.partners.size() / world.nodes.size();
    check(world.groups.empty() == (each == 0), "parities without groups, or groups without parities");
    std::map<std::uint32_t, std::vector<NodeIndex>> members;
    for (std::size_t i = 0; i < world.groups.size(); ++i) members[world.groups[i]].push_back(world.nodes[i]);
    for (const auto &[group, nodes] : members) {
        check(nodes.size() <= config_.code.data, "a coding group is too large");
        auto holders = partners_of(world, nodes.front().value());
        for (NodeIndex node : nodes) {
            check(partners_of(world, node.value()) == holders,
                  "nodes of one coding group have other holders");
            check(std::find(holders.begin(), holders.end(), node) == holders.end(),
                  "a node keeps a parity of its own group");
        }
    }
}

void Simulator::check_rebuilds(const World &world) const {
    check(has_sound_groups(world), "a world whose groups cannot be");
    for (const Rebuild &r : world.rebuilds) {
        CheckpointId id{world.restore_generation, *world.restore_step};
        for (const RebuildPart &part : r.parts)
            check(part_is_there(id, r, part), "an object is to be made of a part that is not there");
    }
}

}  // namespace dlrover::sim
