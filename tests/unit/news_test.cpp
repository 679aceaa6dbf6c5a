// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/news.h"

#include <boost/test/unit_test.hpp>

#include "pmix_server/dlrover_pmix.h"

using namespace dlrover;
using namespace dlrover::pmix;

namespace {

using Kind = proto::local::PmixEventKind;

World sample() {
    World world;
    world.generation = {Term(1), 2};
    world.nodes = {"n3", "n1", "n7"};
    world.ranks_per_node = {2, 3, 1};
    return world;
}

std::optional<News> news(Kind kind, std::uint64_t number) {
    proto::local::PmixEventT event;
    event.kind = kind;
    event.number = number;
    return make_news(sample(), event);
}

template <typename T>
void expect(const JobDatum &datum, const char *key, const T &value) {
    BOOST_TEST(datum.key == std::string(key));
    BOOST_REQUIRE(std::holds_alternative<T>(datum.value));
    BOOST_TEST(std::get<T>(datum.value) == value);
}

}  // namespace

BOOST_AUTO_TEST_CASE(news_name_what_they_are_about) {
    auto rank = news(Kind::RankLost, 4);
    BOOST_REQUIRE((rank && rank->values.size() == 2));
    BOOST_TEST(rank->code == DLROVER_PMIX_EVENT_RANK_LOST);
    BOOST_TEST((rank->rank == 4u));
    expect(rank->values[0], DLROVER_PMIX_RANK, std::uint32_t{4});
    expect(rank->values[1], DLROVER_PMIX_NODE, std::string("n1"));
    auto node = news(Kind::NodeLost, 2);
    BOOST_REQUIRE((node && node->values.size() == 1));
    BOOST_TEST(node->code == DLROVER_PMIX_EVENT_NODE_LOST);
    expect(node->values[0], DLROVER_PMIX_NODE, std::string("n7"));
    for (auto [kind, code] : {std::pair(Kind::StepSafe, DLROVER_PMIX_EVENT_STEP_SAFE),
                              std::pair(Kind::StepDurable, DLROVER_PMIX_EVENT_STEP_DURABLE)}) {
        auto step = news(kind, std::uint64_t{1} << 40);
        BOOST_REQUIRE((step && step->values.size() == 1));
        BOOST_TEST(step->code == code);
        expect(step->values[0], DLROVER_PMIX_STEP, std::uint64_t{1} << 40);
    }
    auto nodes = news(Kind::AllocationChanged, 5);
    BOOST_REQUIRE((nodes && nodes->values.size() == 1));
    BOOST_TEST(nodes->code == DLROVER_PMIX_EVENT_ALLOCATION_CHANGED);
    expect(nodes->values[0], DLROVER_PMIX_NODE_COUNT, std::uint32_t{5});
    auto end = news(Kind::Draining, 119);
    BOOST_REQUIRE((end && end->values.size() == 1));
    BOOST_TEST(end->code == DLROVER_PMIX_EVENT_DRAINING);
    expect(end->values[0], DLROVER_PMIX_SECONDS, std::uint32_t{119});
}

BOOST_AUTO_TEST_CASE(news_of_what_can_not_be_are_none) {
    BOOST_TEST(!news(Kind::RankLost, 6).has_value());
    BOOST_TEST(!news(Kind::RankLost, (std::uint64_t{1} << 32) + 1).has_value());
    BOOST_TEST(!news(Kind::NodeLost, 3).has_value());
    BOOST_TEST(!news(Kind::None, 0).has_value());
    BOOST_TEST(!news(static_cast<Kind>(99), 0).has_value());
}

BOOST_AUTO_TEST_CASE(the_end_of_a_generation_has_a_reason) {
    auto end = end_news(sample(), "n7 lost");
    BOOST_TEST(end.code == DLROVER_PMIX_EVENT_GENERATION);
    BOOST_REQUIRE(end.values.size() == 2u);
    expect(end.values[0], DLROVER_PMIX_GENERATION, std::string("1:2"));
    expect(end.values[1], DLROVER_PMIX_REASON, std::string("n7 lost"));
    BOOST_TEST(end_news(sample(), "").values.size() == 1u);
}

BOOST_AUTO_TEST_CASE(what_there_is_not_has_no_value) {
    proto::local::PmixStateT state;
    for (const char *key : {DLROVER_PMIX_SAFE_STEP, DLROVER_PMIX_DURABLE_STEP, DLROVER_PMIX_GOODPUT}) {
        BOOST_TEST(is_of_state(key));
        BOOST_TEST(!state_datum(state, key).has_value());
    }
    BOOST_TEST(!is_of_state(DLROVER_PMIX_NODES));
    state.safe_step = 0;
    state.goodput = std::make_unique<proto::local::GoodputT>();
    state.goodput->wall_us = 100;
    state.goodput->productive_us = 25;
    BOOST_TEST(!state_datum(state, DLROVER_PMIX_GOODPUT).has_value(), "no step yet");
    state.goodput->steps = 1;
    expect(*state_datum(state, DLROVER_PMIX_SAFE_STEP), DLROVER_PMIX_SAFE_STEP, std::uint64_t{0});
    expect(*state_datum(state, DLROVER_PMIX_GOODPUT), DLROVER_PMIX_GOODPUT, 0.25);
}
