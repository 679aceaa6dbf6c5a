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
    constexpr std::uint64_t most = FenceTable::max_open + FenceTable::max_refused;
    for (std::uint64_t i = 0; i < most + 1000; ++i) {
        message.fence = i + 1;
        n.tables[0]->receive(1, message);
    }
    BOOST_TEST(n.way.size() == FenceTable::max_refused, "who is one too many hears of it");
    BOOST_TEST((n.way.front().message.outcome == Outcome::TooLarge));
    BOOST_TEST((n.way.front().message.fence == FenceTable::max_open + 1));
    BOOST_TEST(is(n.outcome(0, n.join(0, "a")), Outcome::TooLarge));
    // Those that had been refused before the first node came stay refused.
    BOOST_TEST(is(n.outcome(0, n.join(0, "a", n.all, most)), Outcome::TooLarge));
    BOOST_TEST(!n.outcome(0, n.join(0, "a", {0, 1, 2}, 1)).has_value(), "and the others wait");
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

/// Whichever node it is that has no room, the others hear of it, and the next fence of these ranks is one
/// again.
BOOST_AUTO_TEST_CASE(a_fence_too_many_fails_for_all_and_the_next_one_does_not) {
    for (std::uint32_t full : {0u, 1u})
        for (bool first : {false, true}) {
            Nodes n(3);
            constexpr std::uint64_t ranks = 1 << 20;
            std::uint32_t partner = full == 0 ? 2 : 0;
            std::vector<std::uint32_t> pair{std::min(full, partner), std::max(full, partner)};
            for (std::uint64_t i = 1; i <= FenceTable::max_open; ++i) n.join(full, "x", pair, i);
            n.deliver();
            std::map<std::uint32_t, FenceTable::Token> tokens;
            if (first) tokens[full] = n.join(full, "f", n.all, ranks);
            n.deliver();
            for (std::uint32_t place : n.all)
                if (place != full && place != partner) tokens[place] = n.join(place, "o", n.all, ranks);
            n.deliver();
            if (!first) tokens[full] = n.join(full, "f", n.all, ranks);
            n.deliver();
            // A node on which the same fences are open has no room, either.
            for (auto [place, token] : tokens) BOOST_TEST(is(n.outcome(place, token), Outcome::TooLarge));
            for (std::uint64_t i = 1; i <= FenceTable::max_open; ++i) n.join(partner, "y", pair, i);
            n.deliver();
            auto late = n.join(partner, "p", n.all, ranks);
            n.deliver();
            BOOST_TEST(is(n.outcome(partner, late), Outcome::TooLarge));
            for (std::uint32_t place : n.all) tokens[place] = n.join(place, "d", n.all, ranks);
            n.deliver();
            for (auto [place, token] : tokens) BOOST_TEST(is(n.outcome(place, token), Outcome::Done));
        }
}

BOOST_AUTO_TEST_CASE(a_set_of_ranks_too_many_fails_for_all) {
    for (std::uint32_t full : {0u, 1u}) {
        Nodes n(2);
        for (std::uint64_t i = 1; i <= FenceTable::max_sets; ++i) n.join(full, "x", {full}, i);
        for (int again : {1, 2})
            for (std::uint32_t first : {0u, 1u}) {
                auto one = n.join(first, "a");
                n.deliver();
                auto other = n.join(1 - first, "b");
                n.deliver();
                BOOST_TEST(is(n.outcome(first, one), Outcome::TooLarge), again);
                BOOST_TEST(is(n.outcome(1 - first, other), Outcome::TooLarge), again);
            }
        BOOST_TEST(is(n.outcome(full, n.join(full, "x", {full}, 7)), Outcome::Done), "those before go on");
    }
    Nodes n(1);
    for (std::uint64_t i = 0; i < FenceTable::max_sets + FenceTable::max_refused_sets; ++i)
        n.join(0, "", {0}, i);
    BOOST_TEST(!n.tables[0]->join({1 << 20, {0}, {}, Time::max(), 0}).ok());
}

BOOST_AUTO_TEST_CASE(what_waits_on_the_first_node_has_a_bound) {
    Nodes n(2);
    const std::string data(max_data_bytes - 1, 'x');
    constexpr std::uint64_t room = FenceTable::max_held_bytes / (max_data_bytes - 1);
    std::map<std::uint64_t, FenceTable::Token> tokens;
    for (std::uint64_t i = 0; i <= room; ++i) tokens[i] = n.join(1, data, n.all, i + 1);
    n.deliver();
    BOOST_TEST(is(n.outcome(1, tokens[room]), Outcome::TooLarge));
    BOOST_TEST(is(n.outcome(0, n.join(0, "", n.all, room + 1)), Outcome::TooLarge));
    for (std::uint64_t i = 0; i < room; ++i) {
        BOOST_TEST(!n.outcome(1, tokens[i]).has_value());
        // One that is done, one that fails: there is room again.
        for (auto [bytes, outcome] : {std::pair(0u, Outcome::Done), std::pair(2u, Outcome::TooLarge)}) {
            if (bytes > 0) tokens[i] = n.join(1, data, n.all, i + 1);
            n.deliver();
            BOOST_TEST(is(n.outcome(0, n.join(0, std::string(bytes, 'y'), n.all, i + 1)), outcome));
            n.deliver();
            BOOST_TEST(is(n.outcome(1, tokens[i]), outcome));
        }
    }
    for (std::uint64_t i = 0; i <= room; ++i) tokens[i] = n.join(1, data, n.all, i + 1);
    n.deliver();
    for (std::uint64_t i = 0; i <= room; ++i) BOOST_TEST(n.outcome(1, tokens[i]).has_value() == (i == room));
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
