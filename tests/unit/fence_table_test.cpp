// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/fence_table.h"

#include <boost/test/unit_test.hpp>
#include <deque>
#include <memory>

using namespace dlrover;
using namespace dlrover::pmix;
using namespace std::chrono_literals;

namespace {

proto::Bytes bytes_of(const std::string &text) {
    return {text.begin(), text.end()};
}

/// Nodes whose messages arrive when the test wants it.
struct Nodes {
    struct Flying {
        std::uint32_t from, to;
        Message message;
    };
    struct Ended {
        Outcome outcome;
        proto::Bytes data;
    };
    std::deque<Flying> way;
    std::map<std::uint32_t, std::map<FenceTable::Token, Ended>> ended;  ///< by place
    std::vector<std::unique_ptr<FenceTable>> tables;
    std::vector<std::uint32_t> all;
    FenceTable::Token last = 0;

    explicit Nodes(std::uint32_t count) {
        for (std::uint32_t place = 0; place < count; ++place) {
            all.push_back(place);
            FenceTable::Hooks hooks;
            hooks.send = [this, place](const auto &to, const Message &message) {
                for (std::uint32_t one : to) way.push_back({place, one, message});
            };
            hooks.finish = [this, place](FenceTable::Token token, Outcome outcome, const proto::Bytes &data) {
                BOOST_TEST(ended[place].emplace(token, Ended{outcome, data}).second, "once");
            };
            tables.push_back(std::make_unique<FenceTable>(place, std::move(hooks)));
        }
    }
    FenceTable::Token join(std::uint32_t place, const std::string &data, std::vector<std::uint32_t> places,
                           std::uint64_t ranks = 0, Time deadline = Time::max()) {
        BOOST_TEST(tables[place]->join({ranks, std::move(places), bytes_of(data), deadline, ++last}).ok());
        tables[place]->flush();
        return last;
    }
    FenceTable::Token join(std::uint32_t place, const std::string &data) { return join(place, data, all); }
    void deliver() {
        while (!way.empty()) {
            Flying next = std::move(way.front());
            way.pop_front();
            tables[next.to]->receive(next.from, std::move(next.message));
            tables[next.to]->flush();
        }
    }
    void lose_everywhere(std::uint32_t place) {
        for (auto &table : tables) {
            table->lose(place);
            table->flush();
        }
    }
    std::optional<Outcome> outcome(std::uint32_t place, FenceTable::Token token) {
        auto it = ended[place].find(token);
        return it == ended[place].end() ? std::nullopt : std::optional(it->second.outcome);
    }
};

bool is(std::optional<Outcome> found, Outcome wanted) {
    return found == wanted;
}

}  // namespace

BOOST_AUTO_TEST_CASE(all_get_what_all_contribute) {
    Nodes n(3);
    auto third = n.join(2, "cc"), first = n.join(0, "a");
    n.deliver();
    BOOST_TEST(!n.outcome(0, first).has_value(), "one is missing");
    auto second = n.join(1, "b");
    n.deliver();
    for (auto [place, token] : {std::pair(0u, first), std::pair(1u, second), std::pair(2u, third)}) {
        BOOST_TEST(is(n.outcome(place, token), Outcome::Done));
        BOOST_TEST(n.ended[place].at(token).data == bytes_of("abcc"));
    }
}

BOOST_AUTO_TEST_CASE(fences_of_the_same_ranks_follow_each_other) {
    Nodes n(2);
    // The second node is a fence ahead.
    auto one = n.join(1, "x1"), two = n.join(1, "x2");
    n.deliver();
    auto first = n.join(0, "y1");
    n.deliver();
    BOOST_TEST(n.ended[0].at(first).data == bytes_of("y1x1"));
    BOOST_TEST(n.ended[1].at(one).data == bytes_of("y1x1"));
    BOOST_TEST(!n.outcome(1, two).has_value());
    n.join(0, "y2");
    n.deliver();
    BOOST_TEST(n.ended[1].at(two).data == bytes_of("y2x2"));
}

BOOST_AUTO_TEST_CASE(fences_of_other_ranks_do_not_meet) {
    Nodes n(3);
    auto all = n.join(0, "a");
    auto some = n.join(1, "b", {1, 2}, 77);
    n.join(2, "c", {1, 2}, 77);
    n.deliver();
    BOOST_TEST(n.ended[1].at(some).data == bytes_of("bc"));
    BOOST_TEST(!n.outcome(0, all).has_value());
}

BOOST_AUTO_TEST_CASE(a_fence_of_one_node_needs_nobody) {
    Nodes n(2);
    auto token = n.join(1, "b", {1}, 5);
    BOOST_TEST(is(n.outcome(1, token), Outcome::Done));
    BOOST_TEST(n.way.empty());
}

BOOST_AUTO_TEST_CASE(a_lost_node_fails_it_for_all) {
    for (std::uint32_t lost : {0u, 1u, 2u}) {
        Nodes n(3);
        std::map<std::uint32_t, FenceTable::Token> tokens;
        for (std::uint32_t place : n.all)
            if (place != lost) tokens[place] = n.join(place, "d");
        n.deliver();
        n.lose_everywhere(lost);
        n.deliver();
        for (auto [place, token] : tokens) BOOST_TEST(is(n.outcome(place, token), Outcome::Lost));
        auto [place, old] = *tokens.begin();
        BOOST_TEST(is(n.outcome(place, n.join(place, "e")), Outcome::Lost), "and the next one at once");
    }
}

BOOST_AUTO_TEST_CASE(one_node_that_knows_of_the_loss_tells_the_others) {
    Nodes n(3);
    auto first = n.join(0, "a"), second = n.join(1, "b");
    n.deliver();
    n.tables[1]->lose(2);
    n.tables[1]->flush();
    n.deliver();
    BOOST_TEST(is(n.outcome(1, second), Outcome::Lost));
    BOOST_TEST(is(n.outcome(0, first), Outcome::Lost));
    // Who comes later hears of it too.
    auto third = n.join(2, "c");
    n.deliver();
    BOOST_TEST(is(n.outcome(2, third), Outcome::Lost));
}

BOOST_AUTO_TEST_CASE(one_deadline_is_everybodys) {
    for (std::uint32_t hasty : {0u, 1u}) {
        Nodes n(3);
        std::map<std::uint32_t, FenceTable::Token> tokens;
        for (std::uint32_t place : {0u, 1u})
            tokens[place] = n.join(place, "d", n.all, 0, place == hasty ? Time(5s) : Time::max());
        n.deliver();
        BOOST_TEST((n.tables[hasty]->next_tick() == Time(5s)));
        n.tables[hasty]->tick(4s);
        n.tables[hasty]->flush();
        BOOST_TEST(n.ended.empty());
        n.tables[hasty]->tick(5s);
        n.tables[hasty]->flush();
        n.deliver();
        for (auto [place, token] : tokens) BOOST_TEST(is(n.outcome(place, token), Outcome::TimedOut));
        auto late = n.join(2, "d");
        n.deliver();
        BOOST_TEST(is(n.outcome(2, late), Outcome::TimedOut));
        // The next fence is not hurt by it.
        for (std::uint32_t place : n.all) tokens[place] = n.join(place, "e");
        n.deliver();
        for (auto [place, token] : tokens) BOOST_TEST(is(n.outcome(place, token), Outcome::Done));
    }
}

BOOST_AUTO_TEST_CASE(a_failure_before_the_first_node_came_is_kept_for_it) {
    Nodes n(2);
    auto second = n.join(1, "b", n.all, 0, 1s);
    n.deliver();
    n.tables[1]->tick(1s);
    n.tables[1]->flush();
    n.deliver();
    BOOST_TEST(is(n.outcome(1, second), Outcome::TimedOut));
    auto first = n.join(0, "a");
    BOOST_TEST(is(n.outcome(0, first), Outcome::TimedOut));
}

BOOST_AUTO_TEST_CASE(too_much_data_fails_it) {
    Nodes n(2);
    std::string half(max_data_bytes / 2 + 1, 'x');
    auto first = n.join(0, half), second = n.join(1, half);
    n.deliver();
    BOOST_TEST(is(n.outcome(0, first), Outcome::TooLarge));
    BOOST_TEST(is(n.outcome(1, second), Outcome::TooLarge));
}

BOOST_AUTO_TEST_CASE(the_end_of_the_generation_ends_what_waits) {
    Nodes n(2);
    auto token = n.join(1, "b");
    n.tables[1]->stop();
    n.tables[1]->flush();
    BOOST_TEST(is(n.outcome(1, token), Outcome::Lost));
    BOOST_TEST(!n.tables[1]->join({0, n.all, {}, Time::max(), 99}).ok());
}

BOOST_AUTO_TEST_CASE(others_can_not_fill_the_table) {
    Nodes n(2);
    Message message;
    message.kind = proto::pmix::MessageKind::Contribute;
    for (std::uint64_t i = 0; i < 2 * FenceTable::max_open; ++i) {
        message.fence = i + 1;
        n.tables[0]->receive(1, message);
    }
    BOOST_TEST(!n.tables[0]->join({0, n.all, {}, Time::max(), 1}).ok());
    // What is over is not begun again.
    Nodes m(2);
    m.join(0, "a");
    m.join(1, "b");
    m.deliver();
    message.fence = 0;
    m.tables[0]->receive(1, message);
    auto next = m.join(0, "c");
    BOOST_TEST(!m.outcome(0, next).has_value());
}

BOOST_AUTO_TEST_CASE(a_result_of_another_node_than_the_first_is_not_believed) {
    Nodes n(3);
    auto token = n.join(1, "b");
    Message result;
    result.kind = proto::pmix::MessageKind::Result;
    n.tables[1]->receive(2, result);
    n.tables[1]->flush();
    BOOST_TEST(!n.outcome(1, token).has_value());
    n.tables[1]->receive(0, result);
    n.tables[1]->flush();
    BOOST_TEST(is(n.outcome(1, token), Outcome::Done));
}
