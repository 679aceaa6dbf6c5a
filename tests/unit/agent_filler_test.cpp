// SPDX-License-Identifier: Apache-2.0
#include "agent/filler.h"

#include <boost/test/unit_test.hpp>

using namespace dlrover;
using namespace dlrover::agent;
using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t bytes = 8u << 20;

struct Fill {
    Result<std::unique_ptr<Loop>> created = Loop::create();
    std::unique_ptr<Loop> loop = std::move(*created);
    std::vector<proto::local::SegmentFilledT> filled;
    std::size_t wanted = 1;
    Filler filler{*loop, [this](proto::local::SegmentFilledT said) {
                      filled.push_back(std::move(said));
                      if (filled.size() == wanted) loop->stop();
                  }};

    UniqueFd order(std::uint64_t id, std::uint64_t floor_bytes) {
        auto segment = ckpt::create_segment("test", bytes);
        BOOST_REQUIRE(segment.ok());
        proto::local::FillSegmentT order;
        order.id = id;
        order.bytes = bytes;
        order.floor_bytes = floor_bytes;
        BOOST_TEST(filler.fill(order, UniqueFd(::dup(segment->get()))).ok());
        return std::move(*segment);
    }
    void run() {
        auto late = loop->after(30s, [this] { loop->stop(); });
        loop->run();
        loop->cancel(late);
        BOOST_REQUIRE(filled.size() == wanted);
    }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(agent_filler, Fill)

BOOST_AUTO_TEST_CASE(segments_get_their_pages_one_after_the_other) {
    wanted = 2;
    auto first = order(5, 0), second = order(6, 0);
    run();
    BOOST_TEST(filled[0].id == 5u);
    BOOST_TEST(filled[1].id == 6u);
    BOOST_TEST(filled[1].text == "");
    BOOST_TEST(filled[1].busy_us > 0u);
    BOOST_TEST(ckpt::has_all_pages(first.get(), bytes));
    BOOST_TEST(ckpt::has_all_pages(second.get(), bytes));
}

BOOST_AUTO_TEST_CASE(at_the_floor_it_says_so) {
    auto segment = order(5, std::uint64_t{1} << 60);
    run();
    BOOST_TEST(filled[0].no_room);
    BOOST_TEST(filled[0].text != "");
    BOOST_TEST(!ckpt::has_all_pages(segment.get(), 1));
}

BOOST_AUTO_TEST_CASE(it_may_end_in_the_middle) {
    for (std::uint64_t id = 0; id < 20; ++id) order(id, 0);
}

BOOST_AUTO_TEST_SUITE_END()
