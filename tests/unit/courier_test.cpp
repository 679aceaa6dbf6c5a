// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/courier.h"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <random>

using namespace dlrover;
using namespace dlrover::pmix;
using namespace std::chrono_literals;

namespace {

Courier::Letter letter_of(const std::string &text) {
    return std::make_shared<const proto::Bytes>(text.begin(), text.end());
}

Courier::Letter letter_of(std::size_t bytes, std::uint8_t seed) {
    proto::Bytes all(bytes);
    for (std::size_t i = 0; i < bytes; ++i) all[i] = static_cast<std::uint8_t>(i * 31 + seed);
    return std::make_shared<const proto::Bytes>(std::move(all));
}

/// Two nodes, 0 and 1, and the way between them.
struct Pair {
    struct Flying {
        std::uint32_t to;
        Parcel parcel;
    };
    Time now{0};
    std::deque<Flying> way;
    std::vector<proto::Bytes> arrived[2];
    std::function<bool(const Flying &)> loses = [](const Flying &) { return false; };
    std::size_t sent_bytes = 0;
    Courier a{hooks(0)}, b{hooks(1)};

    Courier::Hooks hooks(std::uint32_t self) {
        return {[this](std::uint32_t to, const Parcel &parcel) {
                    sent_bytes += parcel.bytes.size();
                    way.push_back({to, parcel});
                },
                [this, self](std::uint32_t, std::span<const std::uint8_t> message) {
                    arrived[self].emplace_back(message.begin(), message.end());
                }};
    }
    void deliver() {
        while (!way.empty()) {
            Flying next = std::move(way.front());
            way.pop_front();
            if (!loses(next)) (next.to == 0 ? a : b).receive(now, 1 - next.to, next.parcel);
        }
    }
    void pass(Time time) {
        for (Time end = now + time; now < end; now += 100ms) {
            a.tick(now);
            b.tick(now);
            deliver();
        }
    }
};

}  // namespace

BOOST_AUTO_TEST_CASE(messages_arrive_once_and_in_order) {
    Pair p;
    for (const char *text : {"one", "two", "three"}) BOOST_TEST(p.a.send(p.now, 1, letter_of(text)).ok());
    BOOST_TEST(p.b.send(p.now, 0, letter_of("back")).ok());
    p.deliver();
    BOOST_REQUIRE(p.arrived[1].size() == 3u);
    BOOST_TEST(p.arrived[1][1] == *letter_of("two"));
    BOOST_TEST(p.arrived[0].size() == 1u);
    BOOST_TEST((p.a.next_tick() == Time::max()), "nothing is under way");
    p.pass(10s);
    BOOST_TEST(p.arrived[1].size() == 3u);
}

BOOST_AUTO_TEST_CASE(no_more_is_under_way_than_the_window) {
    Pair p;
    auto big = letter_of(max_data_bytes, 1);
    BOOST_TEST(p.a.send(p.now, 1, big).ok());
    BOOST_TEST(p.sent_bytes == Courier::window_bytes);
    p.deliver();
    BOOST_TEST(p.sent_bytes == big->size());
    BOOST_REQUIRE(p.arrived[1].size() == 1u);
    BOOST_TEST((p.arrived[1][0] == *big));
}

BOOST_AUTO_TEST_CASE(what_is_lost_comes_again) {
    Pair p;
    int lost = 0;
    p.loses = [&](const auto &) { return lost++ < 1; };
    BOOST_TEST(p.a.send(p.now, 1, letter_of("one")).ok());
    p.deliver();
    BOOST_TEST(p.arrived[1].empty());
    BOOST_TEST((p.a.next_tick() == Courier::first_patience));
    p.pass(Courier::first_patience + 200ms);
    BOOST_TEST(p.arrived[1].size() == 1u);
}

BOOST_AUTO_TEST_CASE(what_is_lost_before_another_message_comes_with_that_one) {
    Pair p;
    int lost = 0;
    p.loses = [&](const auto &) { return lost++ < 1; };
    for (const char *text : {"one", "two", "three"}) BOOST_TEST(p.a.send(p.now, 1, letter_of(text)).ok());
    p.deliver();
    BOOST_TEST(p.arrived[1].size() == 3u);
    BOOST_TEST(p.sent_bytes == 2 * 11u, "each twice, though two answers say that the first was lost");
    BOOST_TEST((p.a.next_tick() == Time::max()));
}

BOOST_AUTO_TEST_CASE(whoever_begins_last_gets_what_was_lost_before) {
    Pair p;
    bool begun = false;
    p.loses = [&](const auto &) { return !begun; };
    BOOST_TEST(p.a.send(p.now, 1, letter_of("one")).ok());
    p.deliver();
    begun = true;
    p.b.greet(0);
    p.deliver();
    BOOST_TEST(p.arrived[1].size() == 1u);
    p.b.greet(0);
    p.deliver();
    BOOST_TEST(p.sent_bytes == 2 * 3u);
}

/// Each piece that comes twice is answered twice; were each such answer a reason to send again, all would
/// come twice for ever.
BOOST_AUTO_TEST_CASE(what_comes_twice_is_no_reason_to_send_again) {
    Pair p;
    auto big = letter_of(max_data_bytes, 1);
    int lost = 0;
    p.loses = [&](const auto &flying) { return flying.to == 1 && lost++ < 1; };
    BOOST_TEST(p.a.send(p.now, 1, big).ok());
    for (int i = 0; i < 20; ++i) BOOST_TEST(p.a.send(p.now, 1, letter_of(200000, 2)).ok());
    p.deliver();
    BOOST_TEST(p.arrived[1].size() == 21u);
    std::size_t all = big->size() + 20 * 200000;
    BOOST_TEST(p.sent_bytes <= all + 2 * Courier::window_bytes);
}

/// All has come, and its answers are late: everything comes twice once, and no more.
BOOST_AUTO_TEST_CASE(late_answers_double_nothing_that_follows) {
    Pair p;
    std::deque<Pair::Flying> late;
    bool holds = true;
    p.loses = [&](const auto &flying) {
        if (flying.to == 0 && holds) late.push_back(flying);
        return flying.to == 0 && holds;
    };
    constexpr std::size_t letters = 100, bytes = 60000;
    for (std::size_t i = 0; i < letters; ++i) BOOST_TEST(p.a.send(p.now, 1, letter_of(bytes, 1)).ok());
    p.deliver();
    p.now += Courier::first_patience;
    p.a.tick(p.now);
    holds = false;
    p.way.insert(p.way.begin(), late.begin(), late.end());
    p.deliver();
    BOOST_TEST(p.arrived[1].size() == letters);
    BOOST_TEST(p.sent_bytes <= letters * bytes + 2 * Courier::window_bytes);
}

BOOST_AUTO_TEST_CASE(a_greeting_that_crosses_the_first_words_doubles_nothing_that_follows) {
    Pair p;
    auto big = letter_of(max_data_bytes, 1);
    BOOST_TEST(p.a.send(p.now, 1, big).ok());
    p.b.greet(0);
    std::rotate(p.way.begin(), p.way.end() - 1, p.way.end());
    p.deliver();
    BOOST_TEST(p.arrived[1].size() == 1u);
    BOOST_TEST(p.sent_bytes <= big->size() + Courier::window_bytes);
}

BOOST_AUTO_TEST_CASE(a_lost_answer_brings_nothing_twice) {
    Pair p;
    p.loses = [&](const auto &flying) { return flying.to == 0 && p.now < 3s; };
    BOOST_TEST(p.a.send(p.now, 1, letter_of("one")).ok());
    p.pass(10s);
    BOOST_TEST(p.arrived[1].size() == 1u);
    BOOST_TEST((p.a.next_tick() == Time::max()));
}

BOOST_AUTO_TEST_CASE(any_losses_are_made_up_for) {
    for (unsigned seed = 0; seed < 20; ++seed) {
        Pair p;
        std::minstd_rand random(seed);
        p.loses = [&](const auto &) { return random() % 4 == 0; };
        std::vector<Courier::Letter> letters;
        for (std::uint8_t i = 0; i < 30; ++i) {
            letters.push_back(letter_of(1 + random() % (i % 10 == 0 ? 900000 : 3000), i));
            BOOST_TEST(p.a.send(p.now, 1, letters.back()).ok());
        }
        p.pass(600s);
        BOOST_REQUIRE(p.arrived[1].size() == letters.size());
        for (std::size_t i = 0; i < letters.size(); ++i) BOOST_TEST((p.arrived[1][i] == *letters[i]));
    }
}

BOOST_AUTO_TEST_CASE(a_place_that_takes_nothing_fills_no_memory) {
    Pair p;
    p.loses = [](const auto &) { return true; };
    auto big = letter_of(max_data_bytes, 1);
    std::size_t taken = 0;
    while (p.a.send(p.now, 1, big).ok()) ++taken;
    BOOST_TEST(taken == Courier::max_queued_bytes / max_data_bytes);
    BOOST_TEST(p.a.send(p.now, 2, big).ok(), "another place");
}

BOOST_AUTO_TEST_CASE(answers_that_can_not_be_change_nothing) {
    Pair p;
    BOOST_TEST(p.a.send(p.now, 1, letter_of("one")).ok());
    p.way.clear();
    Parcel false_answer;
    false_answer.kind = proto::pmix::ParcelKind::Received;
    for (auto [message, at] :
         {std::pair<std::uint64_t, std::uint32_t>{7, 0}, {0, 3}, {0, 99}, {1, 1}, {0, 0}}) {
        false_answer.message = message;
        false_answer.at = at;
        p.a.receive(p.now, 1, false_answer);
    }
    p.pass(3s);
    BOOST_TEST(p.arrived[1].size() == 1u);
}

BOOST_AUTO_TEST_CASE(parcels_are_verified) {
    Parcel piece;
    piece.kind = proto::pmix::ParcelKind::Piece;
    piece.total = 10;
    piece.at = 4;
    piece.bytes = {1, 2, 3, 4, 5, 6};
    BOOST_TEST(decode_parcel(encode_parcel(piece)).ok());
    piece.total = 9;
    BOOST_TEST(!decode_parcel(encode_parcel(piece)).ok());
    piece.total = max_message_bytes + 1;
    BOOST_TEST(!decode_parcel(encode_parcel(piece)).ok());
    piece.total = 4;
    BOOST_TEST(!decode_parcel(encode_parcel(piece)).ok());
    piece = {};
    BOOST_TEST(!decode_parcel(encode_parcel(piece)).ok());
}
