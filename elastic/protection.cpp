// SPDX-License-Identifier: Apache-2.0
// Copies on other nodes: who keeps whose, which complete step gets its copies now, when it is safe.
#include <algorithm>

#include "elastic/member_state.h"
#include "elastic/placement.h"

namespace dlrover::elastic {

/// Nodes of the world, and spares only where these are too few. Who had a partner keeps it.
std::vector<NodeIndex> Member::State::choose_partners(const World &w) const {
    std::vector<NodeIndex> partners;
    std::vector<PlacedNode> candidates;
    for (NodeIndex n : w.nodes) candidates.push_back({n, 0});
    for (NodeIndex n : w.spares)
        if (candidates.size() <= config.copies && !removed(n) && answers(n)) candidates.push_back({n, 0});
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

std::vector<ObjectSource> Member::State::find_sources(const World &w) const {
    std::vector<ObjectSource> sources;
    if (config.copies == 0 || !w.restore_step || w.stored_world_size > 0) return sources;
    CheckpointId id{w.restore_generation, *w.restore_step};
    if (tally.world_size(id) != world_size(w.nodes) || bugged(PlantedBug::sources_left_out)) return sources;
    Rank rank(0);
    for (NodeIndex node : w.nodes)
        for (std::uint32_t i = 0; i < config.nodes[node.value()].ranks; ++i, rank = Rank(rank.value() + 1)) {
            auto holders = tally.holders(id, rank);
            if (holders.empty() || std::ranges::find(holders, node) != holders.end()) continue;
            sources.push_back({rank, holders[rank.value() % holders.size()]});
        }
    return sources;
}

bool Member::State::cannot_protect() const {
    if (world->partners.empty()) return true;
    return std::ranges::any_of(world->nodes, [&](NodeIndex n) { return peers[n.value()].report.exposed; });
}

/// A leader before this one may have called a step safe, and not all have heard of it: nothing is chosen
/// before all that may hold objects have said what they do. Then what it was at goes on.
bool Member::State::begin_protection() {
    auto unheard = [&](NodeIndex n) { return !removed(n) && !peers[n.value()].joined; };
    if (std::ranges::any_of(world->nodes, unheard) || std::ranges::any_of(world->partners, unheard))
        return false;
    protection.safe = tally.newest_safe();
    auto target = tally.oldest_after(protection.safe);
    if (!target) target = protection.safe;
    if (target) set_target(*target);
    return target.has_value();
}

void Member::State::set_target(const CheckpointId &id) {
    protection.target = id;
    protection.progress = tally.safe_count(id);
    protection.since = now;
}

/// Saves wait for copies that are slow: there are fewer of them then. Not for copies that do not come.
void Member::State::judge_protection() {
    Protection &p = protection;
    if (std::uint32_t progress = tally.safe_count(*p.target); progress > p.progress) {
        p.progress = progress;
        p.since = now;
        p.given_up = p.given_up && cannot_protect();
    }
    bool stuck = cannot_protect() || now - p.since >= config.timings.copy_limit;
    if (!stuck || p.given_up) return;
    p.given_up = true;
    note(Note::Kind::warning,
         "Checkpoints have no copies on other nodes now: if a node is lost, its part of them is lost.");
}

/// One step at a time: were the newest always copied, nodes of different speeds would never have copied the
/// same one.
bool Member::State::consider_protection() {
    if (config.copies == 0 || role != Role::leader || !world || !complete || preparing || finish)
        return false;
    Protection &p = protection;
    CheckpointId newest{complete->generation, complete->step};
    if (!p.target && !begin_protection()) return false;
    if (p.safe != p.target) judge_protection();
    if (tally.safe(*p.target, {.safe_early = bugged(PlantedBug::safe_too_early)})) {
        p.safe = p.target;
        p.given_up = false;
    }
    if ((p.safe == p.target || p.given_up) && p.target != newest) set_target(newest);
    if (auto oldest = oldest_wanted()) tally.drop_older_than(oldest->step);
    bool free_early = bugged(PlantedBug::freed_before_safe);
    auto before = std::tuple(protect_told, safe_told, freed_told);
    tell_protection(p.target, p.safe, p.given_up || free_early ? newest : p.safe);
    return before != std::tuple(protect_told, safe_told, freed_told);
}

/// Older seals than these are not counted.
std::optional<SealTally::Complete> Member::State::oldest_wanted() const {
    if (config.copies == 0) return complete;
    const auto &oldest = protection.given_up ? protection.target : protection.safe;
    if (!oldest) return std::nullopt;
    return SealTally::Complete{oldest->step, oldest->generation};
}

/// To the world in force: a late word may tell of a step that is lost by now.
bool Member::State::belongs(const CheckpointId &id) const {
    if (!world || id.generation >= world->id) return true;
    return world->restore_step == id.step && world->restore_generation == id.generation;
}

void Member::State::tell_protection(std::optional<CheckpointId> protect, std::optional<CheckpointId> safe,
                                    std::optional<CheckpointId> freed) {
    auto is_news = [&](const std::optional<CheckpointId> &id, std::optional<CheckpointId> &told) {
        if (!id || !belongs(*id) || id <= told) return false;
        told = id;
        return true;
    };
    if (is_news(protect, protect_told)) out.push_back(Protect{*protect});
    (void)is_news(safe, safe_told);
    if (!is_news(freed, freed_told)) return;
    out.push_back(StepFreed{*freed});
    drop_old_seals(freed->step, freed->generation);
}

}  // namespace dlrover::elastic
