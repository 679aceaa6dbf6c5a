// SPDX-License-Identifier: Apache-2.0
// Programs that save on some ranks only: no step is ever complete, and soon no slot is free.
#include <algorithm>

#include "elastic/member_state.h"

namespace dlrover::elastic {

namespace {

constexpr std::uint64_t skipped_before_warning = 3;  ///< by one rank

bool is_skipping(const RankProgress &p) {
    return p.saves_skipped >= skipped_before_warning;
}

}  // namespace

/// The ranks of the world that have asked for no save yet, as far as their progress tells.
std::vector<Rank> Member::State::idle_savers() const {
    std::vector<bool> saves(world_size(world->nodes));
    for (const Peer &p : peers) {
        if (p.report.running != world->id) continue;
        for (const RankProgress &r : p.report.progress)
            if (r.rank.value() < saves.size() && r.saves_done + r.saves_skipped > 0)
                saves[r.rank.value()] = true;
    }
    std::vector<Rank> idle;
    for (std::uint32_t r = 0; r < saves.size(); ++r)
        if (!saves[r]) idle.emplace_back(r);
    return idle;
}

/// Once in a world.
void Member::State::warn_of_idle_savers(const NodeReport &report) {
    bool has_step = complete && complete->generation == world->id;
    auto skipping = std::ranges::find_if(report.progress, is_skipping);
    if (idle_told == world->id || has_step || skipping == report.progress.end()) return;
    auto idle = idle_savers();
    if (idle.empty()) return;
    idle_told = world->id;
    Note n;
    n.kind = Note::Kind::warning;
    n.generation = world->id;
    n.rank = idle.front();
    n.text = "rank " + std::to_string(skipping->rank.value()) + "'s saves are skipped, and " +
             std::to_string(idle.size()) + " of " + std::to_string(world_size(world->nodes)) +
             " ranks (the first is rank " + std::to_string(idle.front().value()) +
             ") have saved nothing: a step is complete, and makes room, when every rank has saved it";
    out.push_back(std::move(n));
}

}  // namespace dlrover::elastic
