// SPDX-License-Identifier: Apache-2.0
// Copies on other nodes: who keeps whose, which complete step gets its copies now, when it is safe.
#include <algorithm>
#include <utility>

#include "elastic/member_state.h"
#include "elastic/placement.h"

namespace dlrover::elastic {
namespace {

/// The same step may have been saved in an earlier generation, too.
bool is_before(const CheckpointId &id, const SealTally::Complete &other) {
    return id.step < other.step || (id.step == other.step && id.generation < other.generation);
}

constexpr std::uint32_t max_pause = 5;  ///< when no more copies come: tried again after 1, 2 … 16 limits

}  // namespace

PlacedNode Member::State::placed(NodeIndex node) const {
    bool known = node.value() < domains.size() && !bugged(PlantedBug::switches_ignored);
    return {node, known ? domains[node.value()] : 0};
}

bool Member::State::may_hold_copies(NodeIndex spare) const {
    return !removed(spare) && answers(spare) && is_trusted(spare) && !checking.dismissed.contains(spare);
}

/// Those that had a part come first.
std::vector<PlacedNode> Member::State::usable_spares(const World &w) const {
    std::vector<PlacedNode> spares;
    for (NodeIndex n : w.spares)
        if (may_hold_copies(n)) spares.push_back(placed(n));
    std::stable_partition(spares.begin(), spares.end(),
                          [&](const PlacedNode &n) { return world && contains(world->partners, n.node); });
    return spares;
}

void Member::State::choose_holders(World &w) const {
    if (config.code.data == 0) {
        w.partners = choose_partners(w);
        return;
    }
    std::vector<PlacedNode> nodes;
    for (NodeIndex n : w.nodes) nodes.push_back(placed(n));
    Groups groups = choose_groups(nodes, usable_spares(w), config.code, world ? &*world : nullptr);
    w.groups = groups.of;
    for (std::uint32_t group : groups.of)
        w.partners.insert(w.partners.end(), groups.holders[group].begin(), groups.holders[group].end());
}

/// Nodes of the world, and spares only where these are too few. Who had a partner keeps it.
std::vector<NodeIndex> Member::State::choose_partners(const World &w) const {
    std::vector<NodeIndex> partners;
    std::vector<PlacedNode> candidates;
    for (NodeIndex n : w.nodes) candidates.push_back(placed(n));
    for (NodeIndex n : w.spares)
        if (candidates.size() <= config.copies && may_hold_copies(n)) candidates.push_back(placed(n));
    Placement before;
    std::size_t each = world && !world->nodes.empty() ? world->partners.size() / world->nodes.size() : 0;
    for (std::size_t i = 0; each > 0 && i < world->nodes.size(); ++i) {
        auto first = world->partners.begin() + static_cast<std::ptrdiff_t>(i * each);
        before[world->nodes[i]].assign(first, first + static_cast<std::ptrdiff_t>(each));
    }
    Placement placement = place_again(candidates, config.copies, before);
    for (NodeIndex n : w.nodes) partners.insert(partners.end(), placement[n].begin(), placement[n].end());
    return partners;
}

/// Its own node and its partners: less where the group has too few nodes.
std::uint32_t Member::State::holders_wanted(const World &w) {
    return w.nodes.empty() ? 1 : 1 + static_cast<std::uint32_t>(w.partners.size() / w.nodes.size());
}

/// Who answers for an object that a rank of a world of another size has saved: of its holders one whose
/// partners hold it too, so that few copies are missing; a node of the world, where one holds it.
NodeIndex Member::State::home_of(const World &w, const CheckpointId &id, Rank rank) const {
    auto found = tally.holders(id, rank);
    std::vector<NodeIndex> holders(found.begin(), found.end());
    std::ranges::sort(holders);  // whoever told first
    std::size_t each = w.partners.size() / w.nodes.size();
    auto merit = [&](NodeIndex node) {
        auto place = static_cast<std::size_t>(std::ranges::find(w.nodes, node) - w.nodes.begin());
        if (place == w.nodes.size()) return std::size_t{0};
        std::size_t sum = 1;
        for (std::size_t i = place * each; i < (place + 1) * each; ++i)
            sum += contains(holders, w.partners[i]);
        return sum;
    };
    std::size_t first = rank.value() % holders.size();
    NodeIndex best = holders[first];
    for (std::size_t i = 1; i < holders.size(); ++i) {
        NodeIndex next = holders[(first + i) % holders.size()];
        if (merit(best) < merit(next)) best = next;
    }
    return best;
}

/// Who makes an object again that no node holds; none: nobody can.
const Rebuild *Member::State::name_rebuild(World &w, const CheckpointId &id, Rank rank) const {
    auto row = tally.decodable(id, rank);
    if (row.units.empty() || !tally.holders(id, rank).empty()) return nullptr;
    w.rebuilds.push_back(plan_rebuild(rank, row.ranks, row.units, w.rebuilds));
    return &w.rebuilds.back();
}

/// Of a world of another size: nobody knows yet which rank needs what.
void Member::State::name_all_sources(World &w, const CheckpointId &id) const {
    w.memory_world_size = tally.world_size(id);
    for (std::uint32_t r = 0; r < w.memory_world_size; ++r) {
        const Rebuild *rebuild = name_rebuild(w, id, Rank(r));
        w.sources.push_back({Rank(r), rebuild ? rebuild->node : home_of(w, id, Rank(r))});
    }
}

/// Where the objects are that this world goes on from, and that a rank's node lacks.
void Member::State::name_sources(World &w) const {
    if (config.copies == 0 || !w.restore_step || w.stored_world_size > 0) return;
    CheckpointId id{w.restore_generation, *w.restore_step};
    std::uint32_t saved_by = tally.world_size(id);
    if (saved_by == 0 || bugged(PlantedBug::sources_left_out)) return;
    if (saved_by != world_size(w.nodes)) return name_all_sources(w, id);
    Rank rank(0);
    for (NodeIndex node : w.nodes)
        for (std::uint32_t i = 0; i < config.nodes[node.value()].ranks; ++i, rank = Rank(rank.value() + 1)) {
            if (const Rebuild *rebuild = name_rebuild(w, id, rank); rebuild && rebuild->node != node)
                w.sources.push_back({rank, rebuild->node});
            auto holders = tally.holders(id, rank);
            if (holders.empty() || std::ranges::find(holders, node) != holders.end()) continue;
            w.sources.push_back({rank, holders[rank.value() % holders.size()]});
        }
}

/// A word of an earlier world was about other partners.
bool Member::State::cannot_protect() const {
    return std::ranges::any_of(world->nodes, [&](NodeIndex n) {
        const NodeReport &report = peers[n.value()].report;
        return report.exposed && report.running == world->id;
    });
}

bool Member::State::all_joined() const {
    return std::ranges::all_of(world->nodes,
                               [&](NodeIndex n) { return is_self(n) || peers[n.value()].joined; });
}

/// True when copies were given up, and are tried again now.
bool Member::State::consider_giving_up() {
    using GivenUp = Protection::GivenUp;
    Protection &p = protection;
    bool exposed = cannot_protect();
    Duration limit = config.timings.copy_limit;
    if (p.given_up != GivenUp::no) {
        Duration pause = limit * (1u << std::min(p.late_times, max_pause)) / 2;
        bool again = !exposed && (p.given_up == GivenUp::exposed || now - p.since >= pause);
        if (again) p.given_up = GivenUp::no;
        return again;
    }
    std::size_t places = p.target ? tally.held(*p.target) : 0;
    if (std::exchange(p.held, places) != places) p.since = now;
    bool open = p.target && p.safe != p.target, late = open && now - p.since >= limit;
    if (!open || (!exposed && !late)) return false;
    if (!p.safe) find_safe(true);  // from nodes that have come since the world began
    if (!exposed) ++p.late_times;
    p.given_up = exposed ? GivenUp::exposed : GivenUp::late;
    p.since = now;
    if (exposed || p.late_times == 1)
        note(Note::Kind::warning,
             "Checkpoints have no copies on other nodes now: if a node is lost, " +
                 (p.kept ? "the group goes back to step " + std::to_string(p.kept->step.value()) + "."
                         : "its part of them is lost."));
    return false;
}

/// What the nodes that have been heard hold, as far as `counts` says.
template <typename Counts>
SealTally Member::State::tally_joined(Counts counts) const {
    SealTally found = new_tally(holders_wanted(*world));
    for (std::uint32_t i = 0; i < node_count(); ++i)
        if (peers[i].joined && !removed(NodeIndex(i)))
            tally_report(found, NodeIndex(i), peers[i].report, counts);
    return found;
}

/// At the beginning of a reign or a world: what is safe already, also from before what the world goes on
/// from.
void Member::State::find_safe(bool giving_up) {
    SealTally found = tally_joined([&](const CheckpointId &id) {
        return in_force(id) || (is_before(id, *complete) && !covers(world->suspects, id));
    });
    protection.safe = found.newest_safe({});
    // What an earlier leader called safe may be on nodes that have not been heard.
    std::optional<CheckpointId> called;
    for (const Peer &p : peers)
        if (p.joined && p.report.running == world->id) called = std::max(called, p.report.safe);
    called = std::max(called, local.safe);
    if (called && !still_counts(*called)) called.reset();
    // Safe by the rows of a world before, it may be newer than what is safe by this one's.
    protection.kept = std::max({protection.safe, called, found.newest_outliving()});
    if (!protection.kept && giving_up) protection.kept = found.most_copied();
}

/// Whether what was safe is not any more, since a node has dropped a part of it. What is safe besides may
/// have been freed since.
bool Member::State::recount_dropped() {
    Protection &p = protection;
    if (!std::exchange(p.dropped, false) || !world || config.copies == 0) return false;
    if (complete && tally.world_size({complete->generation, complete->step}) == 0) {
        tally = tally_joined([&](const CheckpointId &id) { return in_force(id); });
        complete = tally.newest({});
        void_told.reset();  // what follows may be void, too
    }
    if (!p.safe || tally.safe(*p.safe, {})) return false;
    auto before = std::exchange(p.safe, std::nullopt);
    if (complete) find_safe(false);
    if (p.safe < local.safe) p.safe.reset();
    return p.safe != before;
}

/// The newest complete step; at the beginning of a reign the one that has copies already, since these take
/// the places of others. None of another world size, whose objects are not this world's, but for the one that
/// it goes on from.
void Member::State::choose_target(bool afresh) {
    Protection &p = protection;
    CheckpointId next{complete->generation, complete->step};
    CheckpointId from{world->restore_generation, world->restore_step.value_or(TrainStep())};
    auto fits = [&](const CheckpointId &id) {
        return tally.world_size(id) == world_size(world->nodes) ||
               (world->memory_world_size > 0 && id == from);
    };
    if (!p.target) {
        auto begun = tally.newest_copied();
        if (begun > p.safe && fits(*begun)) next = *begun;
    }
    // Of one that has lost a part meanwhile nobody knows when it gets that back.
    bool open = p.target && p.safe != p.target && !p.hurt;
    if ((open && !afresh && p.given_up == Protection::GivenUp::no) || (p.target == next && !afresh)) return;
    if (!fits(next)) return;
    p.target = next;
    p.hurt = false;
    if (p.given_up == Protection::GivenUp::no) p.since = now;
}

/// One step at a time: were the newest always copied, nodes of different speeds would never have copied the
/// same one. What is kept: the safe step, the one that gets its copies, and what is newer.
bool Member::State::consider_protection() {
    if (config.copies == 0 || !world || !complete || preparing || finish || !acting()) return false;
    Protection &p = protection;
    // What some nodes hold may be complete, and be older than what all of them do.
    if (!p.target && !all_joined()) return false;
    if (!p.target) find_safe(false);
    if (p.target && tally.safe(*p.target, {.safe_early = bugged(PlantedBug::safe_too_early)})) {
        // What was safe before is no news.
        bool is_first = p.safe != p.target && local.safe < p.target;
        growing.moment = growing.moment || (is_first && p.target->generation == world->id);
        p.safe = p.kept = p.target;
        p.hurt = false;
        p.given_up = Protection::GivenUp::no;
        p.late_times = 0;
    }
    bool afresh = consider_giving_up();
    choose_target(afresh);
    if (auto oldest = oldest_wanted()) tally.drop_older_than(oldest->step);
    CheckpointId newest{complete->generation, complete->step};
    // Where nothing is safe, one older than the target may still be the best there is. But a world of another
    // size needs the slots, and so do copies that are tried again: half of the step before may lie there.
    auto freed = p.given_up != Protection::GivenUp::no || !p.target ? newest : p.target;
    if (p.given_up == Protection::GivenUp::no && p.target && !p.safe && !afresh) freed.reset();
    if (bugged(PlantedBug::other_size_freed_early) && world->memory_world_size > 0 && p.target) {
        p.kept.reset();
        local.safe.reset();
        freed = newest;
    }
    auto before = std::tuple(protect_told, local.safe, freed_told);
    tell_protection(p.target, p.kept, freed);
    safe_here(p.safe);
    return before != std::tuple(protect_told, local.safe, freed_told);
}

/// Older seals than these are not counted: the complete step's, those of the one that gets its copies, and of
/// the safe one, which may be dropped.
std::optional<SealTally::Complete> Member::State::oldest_wanted() const {
    if (config.copies == 0 || !complete) return complete;
    if (!protection.target) return std::nullopt;
    auto oldest =
        std::min(*complete, SealTally::Complete{protection.target->step, protection.target->generation});
    const auto &safe = protection.safe;
    return safe && in_force(*safe) ? std::min(oldest, {safe->step, safe->generation}) : oldest;
}

/// To the world in force: a late word may tell of a step that is lost by now.
bool Member::State::belongs(const CheckpointId &id) const {
    if (!world || id.generation >= world->id) return true;
    return world->restore_step == id.step && world->restore_generation == id.generation;
}

/// What was safe before the step that this world goes on from still is.
bool Member::State::still_counts(const CheckpointId &safe) const {
    return belongs(safe) ||
           (world->restore_step && is_before(safe, {*world->restore_step, world->restore_generation}));
}

void Member::State::tell_protection(std::optional<CheckpointId> protect, std::optional<CheckpointId> safe,
                                    std::optional<CheckpointId> freed) {
    auto is_news = [](const std::optional<CheckpointId> &id, bool counts, std::optional<CheckpointId> &told) {
        if (!id || !counts || id <= told) return false;
        told = id;
        return true;
    };
    bool news = is_news(safe, safe && still_counts(*safe), local.safe);
    news = is_news(freed, freed && belongs(*freed), freed_told) || news;
    if (news && freed_told) {
        bool keeps = local.safe && local.safe < freed_told && !bugged(PlantedBug::freed_before_safe);
        StepFreed action{*freed_told, keeps ? local.safe : std::nullopt};
        drop_freed_seals(action);
        out.push_back(action);
    }
    // After it: the copies need the slots.
    if (is_news(protect, protect && belongs(*protect), protect_told)) out.push_back(Protect{*protect});
}

}  // namespace dlrover::elastic
