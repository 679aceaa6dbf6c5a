// SPDX-License-Identifier: Apache-2.0
#include "elastic/coding.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "elastic/node_list.h"

namespace dlrover::elastic {
namespace {

using Places = std::vector<std::size_t>;

/// Precondition: every group's number is below that of the nodes.
std::vector<Places> places_by_group(const World &world) {
    std::vector<Places> groups(world.nodes.size());
    for (std::size_t place = 0; place < world.groups.size(); ++place)
        groups[world.groups[place]].push_back(place);
    return groups;
}

std::span<const NodeIndex> holders_at(const World &world, std::size_t place) {
    std::size_t each = world.partners.size() / world.nodes.size();
    return std::span(world.partners).subspan(place * each, each);
}

bool has_other_size(const World &world, const CheckpointId &id) {
    return world.memory_world_size > 0 && world.restore_step == id.step &&
           world.restore_generation == id.generation;
}

/// By place.
std::vector<std::vector<Rank>> protected_by_place(const World &world, std::span<const NodeSpec> nodes,
                                                  const CheckpointId &id) {
    std::vector<std::vector<Rank>> ranks;
    std::uint32_t next = 0;
    for (NodeIndex n : world.nodes) {
        ranks.emplace_back();
        if (has_other_size(world, id))
            ranks.back() = answered_ranks(world, n);
        else
            for (std::uint32_t i = 0; i < nodes[n.value()].ranks; ++i) ranks.back().emplace_back(next++);
    }
    return ranks;
}

bool all_differ(std::vector<std::uint32_t> numbers) {
    std::ranges::sort(numbers);
    return std::ranges::adjacent_find(numbers) == numbers.end();
}

/// All of a group have the same holders, each once, and none is a member.
bool has_sound_holders(const World &world, const Places &group) {
    if (group.empty()) return true;
    auto holders = holders_at(world, group.front());
    std::vector<std::uint32_t> nodes;
    for (NodeIndex holder : holders) nodes.push_back(holder.value());
    for (std::size_t place : group) {
        nodes.push_back(world.nodes[place].value());
        if (!std::ranges::equal(holders, holders_at(world, place))) return false;
    }
    return group.size() <= max_code_data && all_differ(std::move(nodes));
}

bool is_sound(const Rebuild &r) {
    if (r.row.empty() || r.row.size() > max_code_data || r.parts.size() != r.row.size()) return false;
    std::vector<std::uint32_t> units;
    for (const RebuildPart &part : r.parts) {
        bool itself = part.unit < r.row.size() && r.row[part.unit] == r.rank;
        if (itself || part.unit >= r.row.size() + max_code_parity) return false;
        units.push_back(part.unit);
    }
    return all_differ(std::move(units)) && std::ranges::count(r.row, r.rank) == 1;
}

// ---- which groups, which holders -------------------------------------------------------------------

std::size_t group_count(std::size_t nodes, std::size_t all, CodeSize code) {
    std::size_t parities = std::min<std::size_t>(code.parity, all - 1);
    std::size_t size = std::min<std::size_t>(code.data, all - parities);
    return (nodes + size - 1) / size;
}

/// Nodes of one domain are dealt out to different groups.
std::vector<std::uint32_t> deal(std::span<const PlacedNode> nodes, std::size_t groups) {
    std::map<std::uint32_t, Places> domains;
    for (std::size_t place = 0; place < nodes.size(); ++place) domains[nodes[place].domain].push_back(place);
    std::vector<std::uint32_t> of(nodes.size());
    std::size_t next = 0;
    for (const auto &[domain, places] : domains)
        for (std::size_t place : places) of[place] = static_cast<std::uint32_t>(next++ % groups);
    return of;
}

/// Who keeps the groups' parities.
class Holders {
  public:
    using Chosen = std::vector<std::optional<NodeIndex>>;  ///< of one group, by parity

    Holders(std::span<const PlacedNode> nodes, const std::vector<std::vector<NodeIndex>> &members,
            std::size_t parities)
        : members_(members), parities_(parities) {
        for (const PlacedNode &n : nodes) {
            places_[n.node] = {n.domain, members.size()};
            several_domains_ = several_domains_ || n.domain != nodes.front().domain;
        }
        for (std::size_t group = 0; group < members.size(); ++group)
            for (NodeIndex n : members[group]) places_[n].group = group;
        for (const auto &[node, place] : places_) by_load_.insert({0, place.group, node});
    }
    /// Those of `before` that can stay, each with its parity.
    Chosen keep(std::size_t group, std::span<const NodeIndex> before) {
        Chosen chosen(parities_);
        for (std::size_t p = 0; p < std::min(parities_, before.size()); ++p) {
            if (!places_.contains(before[p]) || contains(members_[group], before[p])) continue;
            chosen[p] = before[p];
            add_load(before[p]);
        }
        return chosen;
    }
    /// All that is missing. Precondition: there are as many nodes that are no members.
    std::vector<NodeIndex> fill(std::size_t group, Chosen chosen) {
        chosen.resize(parities_);
        std::vector<NodeIndex> taken = members_[group], all;
        for (const auto &holder : chosen)
            if (holder) taken.push_back(*holder);
        for (const auto &holder : chosen) {
            all.push_back(holder ? *holder : least(group, taken));
            if (holder) continue;
            taken.push_back(all.back());
            add_load(all.back());
        }
        return all;
    }

  private:
    struct Place {
        std::uint32_t domain = 0;
        std::size_t group = 0;  ///< that it is a member of; behind the last one: of none
        std::size_t load = 0;
    };
    using Entry = std::tuple<std::size_t, std::size_t, NodeIndex>;  ///< load, group, node
    using Entries = std::set<Entry>;

    /// Of those that keep the fewest one of a domain that is not there yet, of the next group first: so every
    /// node gets its share, although no group can use its own.
    NodeIndex least(std::size_t group, const std::vector<NodeIndex> &taken) const {
        for (std::size_t load = std::get<0>(*by_load_.begin());; ++load) {
            auto begin = by_load_.lower_bound({load, 0, NodeIndex()});
            auto middle = by_load_.lower_bound({load, group + 1, NodeIndex()});
            auto end = by_load_.lower_bound({load + 1, 0, NodeIndex()});
            std::optional<Choice> best;
            bool found = look(middle, end, taken, best) || look(begin, middle, taken, best);
            if (found || best) return best->node;
        }
    }
    struct Choice {
        NodeIndex node;
        std::ptrdiff_t beside = 0;  ///< so many that are there are of its domain
    };
    /// Whether `best` can not be bettered.
    bool look(Entries::const_iterator from, Entries::const_iterator to, const std::vector<NodeIndex> &taken,
              std::optional<Choice> &best) const {
        for (; from != to; ++from) {
            NodeIndex node = std::get<2>(*from);
            if (contains(taken, node)) continue;
            std::uint32_t domain = places_.at(node).domain;
            auto beside =
                std::ranges::count(taken, domain, [&](NodeIndex n) { return places_.at(n).domain; });
            if (!best || beside < best->beside) best = Choice{node, beside};
            if (best->beside == 0 || !several_domains_) return true;
        }
        return false;
    }
    void add_load(NodeIndex node) {
        Place &place = places_.at(node);
        by_load_.erase({place.load, place.group, node});
        by_load_.insert({++place.load, place.group, node});
    }

    const std::vector<std::vector<NodeIndex>> &members_;
    std::size_t parities_;
    bool several_domains_ = false;
    std::map<NodeIndex, Place> places_;
    Entries by_load_;
};

}  // namespace

Groups choose_groups(std::span<const PlacedNode> nodes, std::span<const PlacedNode> spares, CodeSize code,
                     const World *before) {
    Groups groups;
    std::vector<PlacedNode> all(nodes.begin(), nodes.end());
    for (const PlacedNode &n : spares)
        if (all.size() < std::size_t{code.data} + code.parity) all.push_back(n);
    if (nodes.empty() || all.size() < 2) return groups;
    std::size_t count = group_count(nodes.size(), all.size(), code);
    bool same = before != nullptr && before->groups.size() == nodes.size() &&
                *std::ranges::max_element(before->groups) + 1 == count;
    groups.of = same ? before->groups : deal(nodes, count);
    std::vector<std::vector<NodeIndex>> members(count);
    for (std::size_t place = 0; place < nodes.size(); ++place)
        members[groups.of[place]].push_back(nodes[place].node);
    Holders holders(all, members, std::min<std::size_t>(code.parity, all.size() - 1));
    std::vector<Holders::Chosen> kept(count);
    for (std::size_t place = 0; same && place < nodes.size(); ++place)
        if (std::uint32_t group = groups.of[place]; kept[group].empty())
            kept[group] = holders.keep(group, holders_at(*before, place));
    for (std::size_t group = 0; group < count; ++group)
        groups.holders.push_back(holders.fill(group, std::move(kept[group])));
    return groups;
}

std::vector<Rank> protected_ranks(const World &world, std::span<const NodeSpec> nodes, NodeIndex node,
                                  const CheckpointId &id) {
    if (has_other_size(world, id)) return answered_ranks(world, node);
    std::vector<Rank> ranks;
    std::uint32_t next = 0;
    for (NodeIndex n : world.nodes) {
        std::uint32_t count = nodes[n.value()].ranks;
        for (std::uint32_t i = 0; n == node && i < count; ++i) ranks.emplace_back(next + i);
        next += count;
    }
    return ranks;
}

std::vector<CodedRow> rows_of(const World &world, std::span<const NodeSpec> nodes, const CheckpointId &id) {
    std::vector<CodedRow> rows;
    auto ranks = protected_by_place(world, nodes, id);
    for (const Places &group : places_by_group(world)) {
        std::size_t first = rows.size();
        for (std::size_t place : group) {
            auto holders = holders_at(world, place);
            if (rows.size() < first + ranks[place].size())
                rows.resize(first + ranks[place].size(), {{}, {}, {holders.begin(), holders.end()}});
            for (std::size_t i = 0; i < ranks[place].size(); ++i) {
                rows[first + i].ranks.push_back(ranks[place][i]);
                rows[first + i].members.push_back(world.nodes[place]);
            }
        }
    }
    return rows;
}

std::optional<CodedRow> row_of(const World &world, std::span<const NodeSpec> nodes, const CheckpointId &id,
                               Rank rank) {
    for (CodedRow &row : rows_of(world, nodes, id))
        if (std::ranges::find(row.ranks, rank) != row.ranks.end()) return std::move(row);
    return std::nullopt;
}

RowBook::RowBook(const World &world, std::span<const NodeSpec> nodes) {
    for (NodeIndex n : world.nodes) world_size_ += nodes[n.value()].ranks;
    if (world.groups.empty()) return;
    World own = world;
    own.memory_world_size = 0;
    fill(own_, own, nodes, {});
    if (world.memory_world_size == 0) return;
    from_ = {world.restore_generation, *world.restore_step};
    memory_world_size_ = world.memory_world_size;
    fill(from_memory_, world, nodes, from_);
}

void RowBook::fill(Rows &to, const World &world, std::span<const NodeSpec> nodes, const CheckpointId &id) {
    for (CodedRow &row : rows_of(world, nodes, id)) {
        Rank first = row.ranks.front();
        to.emplace(first, std::move(row.ranks));
    }
}

bool RowBook::has(const Parity &parity) const {
    bool from_memory = memory_world_size_ > 0 && parity.id == from_;
    const Rows &rows = from_memory ? from_memory_ : own_;
    if (parity.world_size != (from_memory ? memory_world_size_ : world_size_)) return false;
    auto row = rows.find(parity.ranks.front());
    return row != rows.end() && row->second == parity.ranks;
}

bool is_wanted(const World &world, const RowBook &rows, const Parity &parity) {
    if (rows.has(parity)) return true;
    bool restored = world.restore_step == parity.id.step && world.restore_generation == parity.id.generation;
    return restored && std::ranges::find(world.rebuilds, parity.ranks, &Rebuild::row) != world.rebuilds.end();
}

Rebuild plan_rebuild(Rank rank, const std::vector<Rank> &row, std::span<const RebuildPart> units,
                     std::span<const Rebuild> others) {
    auto load = [&](const RebuildPart &part) {
        return std::ranges::count(others, part.node, &Rebuild::node);
    };
    auto is_parity = [&](const RebuildPart &part) { return part.unit >= row.size(); };
    const RebuildPart *own = nullptr;
    for (const RebuildPart &part : units)
        if (is_parity(part) && (own == nullptr || load(part) < load(*own))) own = &part;
    Rebuild rebuild{rank, own->node, row, {*own}};
    auto add = [&](const RebuildPart &part) {
        bool known = std::ranges::find(rebuild.parts, part.unit, &RebuildPart::unit) != rebuild.parts.end();
        if (!known && rebuild.parts.size() < row.size()) rebuild.parts.push_back(part);
    };
    // What it has itself first.
    for (const RebuildPart &part : units)
        if (!is_parity(part) && part.node == rebuild.node) add(part);
    for (bool parities : {false, true})
        for (const RebuildPart &part : units)
            if (is_parity(part) == parities) add(part);
    return rebuild;
}

bool has_sound_groups(const World &world) {
    if (!std::ranges::all_of(world.rebuilds, is_sound)) return false;
    if (world.groups.empty()) return true;
    std::size_t nodes = world.nodes.size(), each = nodes > 0 ? world.partners.size() / nodes : 0;
    if (world.groups.size() != nodes || each == 0 || each > max_code_parity) return false;
    if (*std::ranges::max_element(world.groups) >= nodes) return false;
    return std::ranges::all_of(places_by_group(world),
                               [&](const Places &group) { return has_sound_holders(world, group); });
}

}  // namespace dlrover::elastic
