// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/exchange.h"

#include <boost/test/unit_test.hpp>
#include <deque>
#include <memory>
#include <random>

using namespace dlrover;
using namespace dlrover::pmix;
using namespace std::chrono_literals;

namespace {

proto::local::PmixWorldT message_of(std::uint32_t place, std::vector<std::uint16_t> ranks) {
    proto::local::PmixWorldT message;
    message.generation = std::make_unique<proto::Generation>(1, 2);
    message.name_space = "dlrover.7.0.g1-2";
    message.place = place;
    for (std::size_t i = 0; i < ranks.size(); ++i) message.node_names.push_back("n" + std::to_string(i));
    message.ranks_per_node = std::move(ranks);
    return message;
}

World world_of(std::uint32_t place, std::vector<std::uint16_t> ranks) {
    return *make_world(message_of(place, std::move(ranks)));
}

/// Nodes whose links lose one parcel in `loss`; 0: none.
struct Group {
    struct Flying {
        std::uint32_t from, to;
        Parcel parcel;
    };
    struct Ended {
        Outcome outcome;
        proto::Bytes data;
    };
    Time now{0};
    unsigned loss;
    std::minstd_rand random{7};
    std::deque<Flying> way;
    std::map<Exchange::Token, Ended> ended;
    std::vector<std::unique_ptr<Exchange>> nodes;
    std::vector<std::pair<std::uint64_t, std::uint32_t>> asked;  ///< number, rank
    std::vector<std::pair<std::uint32_t, std::uint32_t>> heard;  ///< at that place, from that rank
    Exchange::Token last = 0;

    explicit Group(const std::vector<std::uint16_t> &ranks, unsigned l = 0) : loss(l) {
        for (std::uint32_t place = 0; place < ranks.size(); ++place) {
            Exchange::Hooks hooks;
            hooks.send = [this, place](std::uint32_t to, const Parcel &parcel) {
                way.push_back({place, to, parcel});
            };
            hooks.finish = [this](Exchange::Token token, Outcome outcome, const proto::Bytes &data) {
                BOOST_TEST(ended.emplace(token, Ended{outcome, data}).second, "once");
            };
            hooks.look_up = [this, place](std::uint32_t from, std::uint64_t number, std::uint32_t rank) {
                asked.emplace_back(number, rank);
                nodes[place]->answer(now, from, number, Outcome::Done, {static_cast<std::uint8_t>(rank)});
            };
            hooks.announced = [this, place](const Announcement &a) { heard.emplace_back(place, a.rank); };
            hooks.told = [this](Exchange::Token token, Outcome outcome, const std::vector<Notice> &found) {
                proto::Bytes data = found.empty() ? proto::Bytes() : found[0].value;
                BOOST_TEST(ended.emplace(token, Ended{outcome, data}).second, "once");
            };
            nodes.push_back(std::make_unique<Exchange>(world_of(place, ranks), Board(), std::move(hooks)));
        }
    }
    void run(Time time) {
        for (Time end = now + time; now < end; now += 100ms) {
            for (auto &node : nodes) node->tick(now);
            while (!way.empty()) {
                Flying next = std::move(way.front());
                way.pop_front();
                if (loss == 0 || random() % loss != 0) nodes[next.to]->receive(now, next.from, next.parcel);
            }
        }
    }
    Exchange::Token fence(std::uint32_t place, std::vector<std::uint32_t> ranks, bool all, std::uint8_t data,
                          Time deadline = Time::max(), const std::string &purpose = {}) {
        Exchange::Fence fence{std::move(ranks), all, purpose, {data}, deadline, ++last};
        BOOST_TEST(nodes[place]->fence(now, std::move(fence)).ok());
        return last;
    }
};

}  // namespace

BOOST_AUTO_TEST_CASE(places_and_ranks) {
    World world = world_of(1, {2, 3, 1});
    BOOST_TEST(world.size() == 6u);
    BOOST_TEST(world.first_rank(2) == 5u);
    BOOST_TEST(world.place_of(4).value() == 1u);
    BOOST_TEST(!world.place_of(6).has_value());
    BOOST_TEST(world.places_of({0, 1, 5}) == (std::vector<std::uint32_t>{0, 2}));
}

BOOST_AUTO_TEST_CASE(worlds_that_can_not_be_are_refused) {
    BOOST_TEST(make_world(message_of(0, {1})).ok());
    BOOST_TEST(!make_world(message_of(1, {1})).ok());
    BOOST_TEST(!make_world(message_of(0, {})).ok());
    BOOST_TEST(!make_world(message_of(0, {0})).ok());
    auto message = message_of(0, {1, 1});
    message.node_names.pop_back();
    BOOST_TEST(!make_world(message).ok());
    message.node_names.emplace_back("n1,n2");
    BOOST_TEST(!make_world(message).ok());
    message = message_of(0, {1});
    message.name_space = std::string(256, 'x');
    BOOST_TEST(!make_world(message).ok());
}

BOOST_AUTO_TEST_CASE(all_ranks_one_by_one_are_all_ranks) {
    Group g({1, 2});
    auto first = g.fence(0, {}, true, 'a'), second = g.fence(1, {0, 1, 2}, false, 'b');
    g.run(1s);
    BOOST_REQUIRE(g.ended.contains(first) && g.ended.contains(second));
    BOOST_TEST(g.ended.at(second).data == (proto::Bytes{'a', 'b'}));
}

BOOST_AUTO_TEST_CASE(another_purpose_is_another_fence) {
    Group g({1, 1});
    auto plain = g.fence(0, {}, true, 'a'), named = g.fence(1, {}, true, 'b', Time::max(), "construct x");
    g.run(1s);
    BOOST_TEST(g.ended.empty());
    auto other = g.fence(0, {0, 1}, false, 'c', Time::max(), "construct x"), rest = g.fence(1, {}, true, 'd');
    g.run(1s);
    BOOST_REQUIRE(g.ended.size() == 4u);
    BOOST_TEST(g.ended.at(named).data == (proto::Bytes{'c', 'b'}));
    BOOST_TEST(g.ended.at(other).data == (proto::Bytes{'c', 'b'}));
    BOOST_TEST(g.ended.at(plain).data == (proto::Bytes{'a', 'd'}));
    BOOST_TEST(g.ended.at(rest).data == (proto::Bytes{'a', 'd'}));
}

BOOST_AUTO_TEST_CASE(fences_and_modex_over_links_that_lose) {
    Group g({2, 2, 2, 2}, 3);
    std::vector<Exchange::Token> tokens;
    for (std::uint8_t round = 0; round < 10; ++round)
        for (std::uint32_t place = 0; place < 4; ++place) {
            tokens.push_back(g.fence(place, {}, true, round));
            BOOST_TEST(g.nodes[place]->modex(g.now, (2 * place + 3) % 8, Time::max(), ++g.last).ok());
            tokens.push_back(g.last);
        }
    g.run(600s);
    BOOST_TEST(g.ended.size() == tokens.size());
    for (const auto &[token, end] : g.ended) BOOST_TEST((end.outcome == Outcome::Done));
    BOOST_TEST(g.ended.at(tokens[0]).data == proto::Bytes(4, 0));
    BOOST_TEST(g.ended.at(tokens[1]).data == proto::Bytes{3});
    BOOST_TEST(g.asked.size() == 40u, "each once");
}

BOOST_AUTO_TEST_CASE(what_is_published_over_links_that_lose_is_found) {
    Group g({1, 1, 1}, 3);
    for (auto &node : g.nodes) node->begin(g.now);
    Change change;
    change.by = {"dlrover.7.0.g1-2", 1, "n1"};
    Notice &notice = change.notices.emplace_back();
    notice.key = "a";
    notice.name_space = change.by.name_space;
    notice.node = "n1";
    notice.value.assign(500000, 7);
    BOOST_TEST(g.nodes[1]->change(g.now, change, Time::max(), 1).ok());
    NoticeQuery query{{change.by.name_space, 2, "n2"}, {"a"}, NoticeRange::Group, true, 0};
    BOOST_TEST(g.nodes[2]->find(g.now, query, Time::max(), 2).ok());
    g.run(600s);
    BOOST_REQUIRE(g.ended.contains(1) && g.ended.contains(2));
    BOOST_TEST((g.ended.at(1).outcome == Outcome::Done));
    BOOST_TEST(g.ended.at(2).data == notice.value);
}

BOOST_AUTO_TEST_CASE(events_reach_every_other_node_once) {
    Group g({2, 1, 1}, 3);
    BOOST_TEST(g.nodes[1]->announce(g.now, {-5000, 2, false, 1, {1}}).ok());
    BOOST_TEST(g.nodes[1]->announce(g.now, {-5000, 0, false, 1, {1}}).ok());  // for a rank of another node
    g.run(600s);
    std::ranges::sort(g.heard);
    BOOST_TEST((g.heard == std::vector<std::pair<std::uint32_t, std::uint32_t>>{{0, 2}, {2, 2}}));
    Announcement large{-5000, 2, false, 1, proto::Bytes(max_info_bytes, 1)};
    int sent = 0;
    while (g.nodes[1]->announce(g.now, large).ok()) ++sent;
    BOOST_TEST(sent == 31);
    g.now += 1s;
    BOOST_TEST(g.nodes[1]->announce(g.now, large).ok());
    g.nodes[1]->stop();
    BOOST_TEST((g.nodes[1]->announce(g.now, large).code() == Code::stale));
}

BOOST_AUTO_TEST_CASE(a_modex_waits_no_longer_than_it_may) {
    Group g({1, 1}, 1);  // nothing arrives
    BOOST_TEST(g.nodes[0]->modex(g.now, 1, 2s, 1).ok());
    BOOST_TEST((g.nodes[0]->next_tick() == Courier::first_patience));
    g.run(3s);
    BOOST_REQUIRE(g.ended.contains(1));
    BOOST_TEST((g.ended.at(1).outcome == Outcome::TimedOut));
}

BOOST_AUTO_TEST_CASE(a_place_that_is_out_of_reach_ends_what_needs_it) {
    Group g({1, 1, 1}, 1);
    auto all = g.fence(0, {}, true, 'a'), pair = g.fence(0, {0, 1}, false, 'a');
    BOOST_TEST(g.nodes[0]->modex(g.now, 2, Time::max(), 77).ok());
    g.nodes[0]->lose(g.now, 2);
    BOOST_TEST((g.ended.at(all).outcome == Outcome::Lost));
    BOOST_TEST((g.ended.at(77).outcome == Outcome::Lost));
    BOOST_TEST(!g.ended.contains(pair));
}

BOOST_AUTO_TEST_CASE(the_end_ends_everything) {
    Group g({1, 1}, 1);
    auto all = g.fence(0, {}, true, 'a');
    g.nodes[0]->stop();
    BOOST_TEST((g.ended.at(all).outcome == Outcome::Lost));
    BOOST_TEST(!g.nodes[0]->fence(g.now, {{}, true, {}, {}, Time::max(), 9}).ok());
    BOOST_TEST(!g.nodes[0]->modex(g.now, 1, Time::max(), 10).ok());
    BOOST_TEST(!g.nodes[0]->find(g.now, {}, Time::max(), 11).ok());
    BOOST_TEST((g.nodes[0]->next_tick() == Time::max()));
}

BOOST_AUTO_TEST_CASE(what_can_not_be_is_refused) {
    Group g({1, 1, 1});
    BOOST_TEST(!g.nodes[0]->fence(g.now, {{3}, false, {}, {}, Time::max(), 1}).ok());
    BOOST_TEST(!g.nodes[0]->fence(g.now, {{1, 2}, false, {}, {}, Time::max(), 1}).ok(),
               "no rank of this node");
    BOOST_TEST(!g.nodes[0]->modex(g.now, 0, Time::max(), 1).ok(), "a rank of this node");
    BOOST_TEST(!g.nodes[0]->modex(g.now, 9, Time::max(), 1).ok());
    Parcel parcel;
    parcel.kind = proto::pmix::ParcelKind::Piece;
    parcel.total = 1;
    parcel.bytes = {1};
    g.nodes[0]->receive(g.now, 9, parcel);  // no such place
    auto all = g.fence(0, {}, true, 'a');
    g.nodes[0]->receive(g.now, 1, parcel);  // no message: that place speaks something else
    BOOST_TEST((g.ended.at(all).outcome == Outcome::Lost));
}
