// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/news.h"

#include "pmix_server/dlrover_pmix.h"
#include "proto/goodput.h"

namespace dlrover::pmix {
namespace {

namespace local = proto::local;

std::optional<News> rank_lost(const World &world, std::uint64_t number) {
    if (number >= world.size()) return std::nullopt;
    auto rank = static_cast<std::uint32_t>(number);
    const std::string &node = world.nodes[*world.place_of(rank)];
    return News{DLROVER_PMIX_EVENT_RANK_LOST, {{DLROVER_PMIX_RANK, rank}, {DLROVER_PMIX_NODE, node}}, rank};
}

std::optional<News> node_lost(const World &world, std::uint64_t place) {
    if (place >= world.nodes.size()) return std::nullopt;
    return News{DLROVER_PMIX_EVENT_NODE_LOST, {{DLROVER_PMIX_NODE, world.nodes[place]}}, {}};
}

std::optional<JobDatum> step_datum(const char *key, std::int64_t step) {
    if (step < 0) return std::nullopt;
    return JobDatum{key, static_cast<std::uint64_t>(step)};
}

}  // namespace

std::optional<News> make_news(const World &world, const local::PmixEventT &event) {
    using Kind = local::PmixEventKind;
    switch (event.kind) {
        case Kind::None:
            return std::nullopt;
        case Kind::RankLost:
            return rank_lost(world, event.number);
        case Kind::NodeLost:
            return node_lost(world, event.number);
        case Kind::StepSafe:
            return News{DLROVER_PMIX_EVENT_STEP_SAFE, {{DLROVER_PMIX_STEP, event.number}}, {}};
        case Kind::StepDurable:
            return News{DLROVER_PMIX_EVENT_STEP_DURABLE, {{DLROVER_PMIX_STEP, event.number}}, {}};
        case Kind::AllocationChanged:
            return News{DLROVER_PMIX_EVENT_ALLOCATION_CHANGED,
                        {{DLROVER_PMIX_NODE_COUNT, static_cast<std::uint32_t>(event.number)}},
                        {}};
        case Kind::Draining:
            return News{DLROVER_PMIX_EVENT_DRAINING,
                        {{DLROVER_PMIX_SECONDS, static_cast<std::uint32_t>(event.number)}},
                        {}};
    }
    return std::nullopt;
}

News end_news(const World &world, const std::string &reason) {
    News news{DLROVER_PMIX_EVENT_GENERATION, {{DLROVER_PMIX_GENERATION, generation_text(world)}}, {}};
    if (!reason.empty()) news.values.push_back({DLROVER_PMIX_REASON, reason});
    return news;
}

bool is_of_state(std::string_view key) {
    return key == DLROVER_PMIX_SAFE_STEP || key == DLROVER_PMIX_DURABLE_STEP || key == DLROVER_PMIX_GOODPUT;
}

std::optional<JobDatum> state_datum(const local::PmixStateT &state, std::string_view key) {
    if (key == DLROVER_PMIX_SAFE_STEP) return step_datum(DLROVER_PMIX_SAFE_STEP, state.safe_step);
    if (key == DLROVER_PMIX_DURABLE_STEP) return step_datum(DLROVER_PMIX_DURABLE_STEP, state.durable_step);
    if (key != DLROVER_PMIX_GOODPUT || !state.goodput) return std::nullopt;
    auto share = proto::goodput_share(*state.goodput);
    return share ? std::optional(JobDatum{DLROVER_PMIX_GOODPUT, *share}) : std::nullopt;
}

}  // namespace dlrover::pmix
