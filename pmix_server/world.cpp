// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/world.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/units.h"

namespace dlrover::pmix {
namespace {

constexpr std::size_t max_name_space_bytes = 255;  ///< PMIX_MAX_NSLEN
constexpr std::uint32_t max_ranks = 1u << 24;

/// They are put into lists with these between them.
bool is_node_name(const std::string &name) {
    return !name.empty() && name.find_first_of(",;[] ") == std::string::npos;
}

}  // namespace

std::uint32_t World::size() const {
    return first_rank(static_cast<std::uint32_t>(nodes.size()));
}

std::uint32_t World::first_rank(std::uint32_t p) const {
    return std::accumulate(ranks_per_node.begin(), ranks_per_node.begin() + p, std::uint32_t{0});
}

std::optional<std::uint32_t> World::place_of(std::uint32_t rank) const {
    std::uint32_t end = 0;
    for (std::uint32_t p = 0; p < nodes.size(); ++p)
        if (end += ranks_per_node[p]; rank < end) return p;
    return std::nullopt;
}

std::vector<std::uint32_t> World::places_of(const std::vector<std::uint32_t> &ranks) const {
    std::set<std::uint32_t> places;
    for (std::uint32_t rank : ranks)
        if (auto p = place_of(rank)) places.insert(*p);
    return {places.begin(), places.end()};
}

std::vector<std::uint32_t> World::all_places() const {
    std::vector<std::uint32_t> places(nodes.size());
    std::iota(places.begin(), places.end(), 0u);
    return places;
}

std::optional<std::pair<JobId, StepId>> step_of(const std::string &name_space) {
    auto job_at = name_space.find('.') + 1, step_at = name_space.find('.', job_at) + 1;
    auto end = name_space.find('.', step_at);
    if (job_at == 0 || step_at == 0 || end == std::string::npos) return std::nullopt;
    auto job = parse_uint(name_space.substr(job_at, step_at - 1 - job_at), 1, UINT32_MAX);
    auto step = parse_uint(name_space.substr(step_at, end - step_at), 0, UINT32_MAX);
    if (!job || !step) return std::nullopt;
    return std::pair(JobId(static_cast<std::uint32_t>(*job)), StepId(static_cast<std::uint32_t>(*step)));
}

Result<World> make_world(const proto::local::PmixWorldT &message) {
    World world;
    if (message.generation)
        world.generation = {Term(message.generation->term()), message.generation->number()};
    world.name_space = message.name_space;
    world.place = message.place;
    world.nodes = message.node_names;
    world.ranks_per_node = message.ranks_per_node;
    if (message.wait_limit_ms > 0) world.wait_limit = std::chrono::milliseconds(message.wait_limit_ms);
    bool named = !world.name_space.empty() && world.name_space.size() <= max_name_space_bytes &&
                 std::ranges::all_of(world.nodes, is_node_name);
    bool fits = world.nodes.size() == world.ranks_per_node.size() && world.place < world.nodes.size() &&
                world.ranks_here() > 0;
    if (!named || !fits || world.size() > max_ranks)
        return Status(Code::invalid_argument, "the daemon describes a world that can not be");
    return world;
}

}  // namespace dlrover::pmix
