// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/notice_table.h"

#include <boost/test/unit_test.hpp>
#include <deque>

using namespace dlrover;
using namespace dlrover::pmix;
using namespace std::chrono_literals;

namespace {

struct Answer {
    Outcome outcome;
    std::vector<Notice> found;
};

/// Nodes of one generation; messages go in order, when run() says so.
struct Nodes {
    struct Flying {
        std::uint32_t from, to;
        Message message;
    };
    std::vector<World> worlds;
    std::deque<Flying> way;
    std::map<std::uint64_t, Answer> answers;
    std::vector<std::unique_ptr<NoticeTable>> tables;
    std::uint64_t last = 0;

    explicit Nodes(std::vector<Board> boards, std::uint64_t generation = 1) {
        for (std::uint32_t place = 0; place < boards.size(); ++place) {
            World &world = worlds.emplace_back();
            world.generation = {Term(1), generation};
            world.name_space = "g" + std::to_string(generation);
            world.place = place;
            world.ranks_per_node.assign(boards.size(), 1);
            for (std::size_t i = 0; i < boards.size(); ++i) world.nodes.push_back("n" + std::to_string(i));
        }
        for (std::uint32_t place = 0; place < boards.size(); ++place) {
            NoticeTable::Hooks hooks;
            hooks.send = [this, place](const auto &to, const Message &message) {
                for (std::uint32_t t : to) way.push_back({place, t, message});
            };
            hooks.told = [this](auto token, Outcome outcome, const auto &found) {
                BOOST_TEST(answers.emplace(token, Answer{outcome, found}).second, "once");
            };
            tables.push_back(
                std::make_unique<NoticeTable>(worlds[place], std::move(boards[place]), std::move(hooks)));
        }
    }
    explicit Nodes(std::size_t count) : Nodes(std::vector<Board>(count)) {}
    void begin() {
        for (auto &table : tables) table->begin();
        run();
    }
    void run() {
        while (!way.empty()) step();
    }
    void step() {
        Flying next = std::move(way.front());
        way.pop_front();
        tables[next.to]->receive(next.from, next.message);
    }
    Asker rank(std::uint32_t place) const { return {worlds[0].name_space, place, worlds[0].nodes[place]}; }
    std::uint64_t publish(std::uint32_t place, const std::string &key, std::size_t bytes = 1) {
        Change change;
        change.by = rank(place);
        Notice &notice = change.notices.emplace_back();
        notice.key = key;
        notice.name_space = change.by.name_space;
        notice.rank = place;
        notice.node = change.by.node;
        notice.value.assign(bytes, 1);
        BOOST_TEST(tables[place]->change(change, Time::max(), ++last).ok());
        return last;
    }
    std::uint64_t look_up(std::uint32_t place, std::vector<std::string> keys, bool wait = false,
                          std::size_t wanted = 0, Time deadline = Time::max()) {
        NoticeQuery query{rank(place), std::move(keys), NoticeRange::Group, wait, wanted};
        BOOST_TEST(tables[place]->look_up(std::move(query), deadline, ++last).ok());
        return last;
    }
    bool is(std::uint64_t token, Outcome outcome) {
        return answers.contains(token) && answers.at(token).outcome == outcome;
    }
    std::vector<Board> end() {
        std::vector<Board> boards;
        for (auto &table : tables) {
            table->stop();
            boards.push_back(table->release());
        }
        return boards;
    }
};

}  // namespace

BOOST_AUTO_TEST_CASE(published_on_one_node_found_on_another) {
    Nodes nodes(3);
    nodes.begin();
    auto published = nodes.publish(1, "a"), missing = nodes.look_up(2, {"b"});
    nodes.run();
    auto found = nodes.look_up(2, {"a", "b"});
    nodes.run();
    BOOST_TEST(nodes.is(published, Outcome::Done));
    BOOST_TEST(nodes.is(missing, Outcome::Unknown));
    BOOST_REQUIRE(nodes.is(found, Outcome::Done));
    BOOST_REQUIRE(nodes.answers.at(found).found.size() == 1u);
    BOOST_TEST(nodes.answers.at(found).found[0].rank == 1u);
    auto again = nodes.publish(0, "a");
    BOOST_TEST(nodes.is(again, Outcome::Duplicate));
}

BOOST_AUTO_TEST_CASE(one_node_needs_no_other) {
    Nodes nodes(1);
    nodes.begin();
    BOOST_TEST(nodes.is(nodes.publish(0, "a"), Outcome::Done));
    BOOST_TEST(nodes.is(nodes.look_up(0, {"a"}), Outcome::Done));
}

BOOST_AUTO_TEST_CASE(what_was_answered_is_seen_by_all) {
    Nodes nodes(3);
    nodes.begin();
    auto published = nodes.publish(1, "a");
    // To the third node nothing gets until the second one's rank has its answer.
    std::deque<Nodes::Flying> late;
    while (!nodes.answers.contains(published)) {
        if (nodes.way.front().to == 2) {
            late.push_back(std::move(nodes.way.front()));
            nodes.way.pop_front();
        } else {
            nodes.step();
        }
    }
    auto found = nodes.look_up(2, {"a"});
    nodes.way.insert(nodes.way.begin(), late.begin(), late.end());
    nodes.run();
    BOOST_TEST(nodes.is(found, Outcome::Done));
}

BOOST_AUTO_TEST_CASE(requests_before_the_board_is_there_wait_for_it) {
    Nodes nodes(2);
    auto published = nodes.publish(1, "a"), found = nodes.look_up(0, {"a"}, true);
    nodes.run();
    BOOST_TEST(nodes.answers.empty());
    nodes.begin();
    BOOST_TEST(nodes.is(published, Outcome::Done));
    BOOST_TEST(nodes.is(found, Outcome::Done));
}

BOOST_AUTO_TEST_CASE(who_waits_is_told_when_it_is_there) {
    Nodes nodes(2);
    nodes.begin();
    auto both = nodes.look_up(0, {"a", "b"}, true), any = nodes.look_up(1, {"a", "b"}, true, 1),
         never = nodes.look_up(1, {"c"}, true, 0, 5s);
    nodes.run();
    BOOST_TEST(nodes.answers.empty());
    nodes.publish(1, "a");
    nodes.run();
    BOOST_TEST(nodes.is(any, Outcome::Done));
    BOOST_TEST(!nodes.answers.contains(both));
    nodes.publish(0, "b");
    nodes.run();
    BOOST_TEST(nodes.is(both, Outcome::Done));
    BOOST_TEST(nodes.answers.at(both).found.size() == 2u);
    BOOST_TEST((nodes.tables[1]->next_tick() == Time(5s)));
    nodes.tables[1]->tick(5s);
    BOOST_TEST(nodes.is(never, Outcome::TimedOut));
    BOOST_TEST((nodes.tables[1]->next_tick() == Time::max()));
}

BOOST_AUTO_TEST_CASE(a_generation_begins_with_the_board_that_came_furthest) {
    Nodes first(3);
    first.begin();
    first.publish(1, "a");
    first.run();
    first.publish(2, "b");
    while (!first.answers.contains(2)) first.step();  // the second node may lack it
    auto boards = first.end();
    // The first node is lost, and a new one has come.
    for (std::size_t lost : {0u, 1u}) {
        auto left = boards;
        left[lost] = Board();
        Nodes second(left, 2);
        second.begin();
        auto found = second.look_up(1, {"a", "b"}), published = second.publish(2, "a");
        second.run();
        BOOST_TEST(second.is(found, Outcome::Done));
        BOOST_TEST(second.answers.at(found).found.size() == 2u);
        BOOST_TEST(second.is(published, Outcome::Done), "in place of a former generation's");
        auto after = second.end();
        BOOST_TEST(encode_board(after[0], true) == encode_board(after[1], true));
        BOOST_TEST(encode_board(after[0], true) == encode_board(after[2], true));
    }
}

BOOST_AUTO_TEST_CASE(equal_boards_are_not_sent) {
    Nodes nodes(2);
    for (auto &table : nodes.tables) table->begin();
    nodes.step();  // the offer
    BOOST_REQUIRE(nodes.way.size() == 1u);
    BOOST_TEST((nodes.way[0].message.kind == proto::pmix::MessageKind::Board));
    BOOST_TEST(nodes.way[0].message.bytes.empty());
}

BOOST_AUTO_TEST_CASE(boards_are_settled_without_a_place_that_is_lost) {
    Board rich;
    rich.version.changes = 5;
    Nodes nodes({Board(), rich, Board()}, 1);
    for (auto &table : nodes.tables) table->begin();
    auto published = nodes.publish(2, "a");
    while (nodes.way.front().to == 0) nodes.step();  // it is asked for its board
    nodes.way.clear();
    nodes.tables[0]->lose(1);
    nodes.run();
    BOOST_TEST(nodes.is(published, Outcome::Done));
    auto lost = nodes.look_up(1, {"a"});
    nodes.tables[1]->lose(0);
    BOOST_TEST(nodes.is(lost, Outcome::Lost));
    Change change;
    BOOST_TEST(!nodes.tables[1]->change(change, Time::max(), 99).ok());
}

BOOST_AUTO_TEST_CASE(the_end_ends_all_requests) {
    Nodes nodes(2);
    nodes.begin();
    auto waiting = nodes.look_up(1, {"a"}, true), published = nodes.publish(1, "a");
    nodes.tables[1]->stop();
    BOOST_TEST(nodes.is(waiting, Outcome::Lost));
    BOOST_TEST(nodes.is(published, Outcome::Lost));
    nodes.run();
}

BOOST_AUTO_TEST_CASE(what_is_open_has_bounds) {
    Nodes nodes(2);
    NoticeQuery query{nodes.rank(1), {"a"}, NoticeRange::Group, true, 0};
    for (std::size_t i = 0; i < NoticeTable::max_open; ++i) nodes.look_up(1, {"a"}, true);
    auto status = nodes.tables[1]->look_up(query, Time::max(), 1);
    BOOST_TEST((status.code() == Code::resource_exhausted));
    Nodes large(2);
    large.begin();
    Change change;
    change.by = large.rank(1);
    change.notices.emplace_back().value.assign(Board::max_bytes, 1);
    BOOST_TEST((large.tables[1]->change(change, Time::max(), 1).code() == Code::resource_exhausted));
    for (int i = 0; i < 4; ++i) large.publish(1, "k" + std::to_string(i), Board::max_bytes - 2000);
    change.notices[0].value.resize(Board::max_bytes / 2);
    BOOST_TEST((large.tables[1]->change(change, Time::max(), 9).code() == Code::resource_exhausted));
    large.run();
    BOOST_TEST(large.is(1, Outcome::Done));
    BOOST_TEST(large.is(2, Outcome::TooLarge));
}
