// SPDX-License-Identifier: Apache-2.0
// A requeued job: what its nodes have kept in memory since its run before, and the first world that goes on
// from it.
#include <algorithm>

#include "elastic/member_state.h"
#include "elastic/placement.h"

namespace dlrover::elastic {

/// Whether this run of the job has not had a world yet, and there was a run before.
bool Member::State::begins_again() const {
    return config.slurm_restart_count > 0 && !world;
}

/// Whoever is in the job may hold objects, spares too.
bool Member::State::all_heard() const {
    for (std::uint32_t i = 0; i < node_count(); ++i)
        if (!removed(NodeIndex(i)) && !is_self(NodeIndex(i)) && counts(NodeIndex(i)) && !peers[i].joined)
            return false;
    return true;
}

/// The newest complete step of the newest generation: an older generation's may have been given up since.
/// Of nodes that have answered to Prepare, as soon as there is one.
std::optional<CheckpointId> Member::State::newest_left(std::uint32_t size) const {
    SealTally left;
    auto add = [&](NodeIndex node, const NodeReport &report) {
        for (const Seal &s : report.seals)
            if (s.world_size == size) left.add(s, size, node);
        for (const Parity &p : report.parities)
            if (p.world_size == size) left.add(p, size, node, true);
    };
    for (std::uint32_t i = 0; i < node_count(); ++i)
        if ((preparing ? peers[i].accepted : peers[i].joined) && !removed(NodeIndex(i)))
            add(NodeIndex(i), peers[i].report);
    return left.newest_complete();
}

bool Member::State::has_all(NodeIndex node, const CheckpointId &id, std::uint32_t first_rank) const {
    const auto &seals = peers[node.value()].report.seals;
    for (std::uint32_t i = 0; i < config.nodes[node.value()].ranks; ++i)
        if (std::ranges::none_of(seals, [&](const Seal &s) {
                return s.step == id.step && s.generation == id.generation && s.rank == Rank(first_rank + i);
            }))
            return false;
    return true;
}

/// So many of `ready`, those that have the objects of a place in it. Where nodes run different numbers of
/// ranks the places are not known before: then objects are fetched.
std::vector<NodeIndex> Member::State::keep_places(const std::vector<NodeIndex> &ready,
                                                  std::size_t size) const {
    std::vector<NodeIndex> nodes(ready.begin(), ready.begin() + static_cast<std::ptrdiff_t>(size));
    std::uint32_t each = config.nodes[ready.front().value()].ranks;
    bool alike =
        std::ranges::all_of(ready, [&](NodeIndex n) { return config.nodes[n.value()].ranks == each; });
    auto id = begins_again() && alike ? newest_left(world_size(nodes)) : std::nullopt;
    if (!id) return nodes;
    std::vector<Candidate> candidates;
    for (NodeIndex n : ready) {
        candidates.push_back({n, {}});
        for (const Seal &s : peers[n.value()].report.seals) {
            bool first = s.step == id->step && s.generation == id->generation && s.rank.value() % each == 0;
            if (first && has_all(n, *id, s.rank.value()))
                candidates.back().places.push_back(s.rank.value() / each);
        }
    }
    return seat(candidates, static_cast<std::uint32_t>(size));
}

/// What the first world of a requeued job goes on from in memory; none where storage has something newer, or
/// an object is at another node and nobody moves it.
std::optional<SealTally::Complete> Member::State::newest_kept(const std::vector<NodeIndex> &nodes) const {
    if (bugged(PlantedBug::kept_passed_over)) return std::nullopt;
    auto id = newest_left(world_size(nodes));
    if (!id) return std::nullopt;
    std::uint32_t first = 0;
    for (NodeIndex n : nodes) {
        if (config.copies == 0 && !has_all(n, *id, first)) return std::nullopt;
        first += config.nodes[n.value()].ranks;
    }
    bool known = storage.found && storage.found->ok;
    if (config.storage && (!known || id < storage.found->newest)) return std::nullopt;
    return SealTally::Complete{id->step, id->generation};
}

/// Says so where the nodes have kept something, and the world does without.
void Member::State::note_unused(const World &w) {
    bool kept = std::ranges::any_of(peers, [](const Peer &p) { return p.joined && !p.report.seals.empty(); });
    if (!kept || (w.restore_step && w.stored_world_size == 0)) return;
    std::string where = w.restore_step ? "storage has a newer step" : "it goes on from the beginning";
    if (w.restore_step && newest_left(world_size(w.nodes)) == std::nullopt) where = "it goes on from storage";
    note(Note::Kind::warning,
         "The memory that was kept since the job's last run does not hold a whole step for these " +
             std::to_string(world_size(w.nodes)) + " ranks: " + where + ".");
}

}  // namespace dlrover::elastic
