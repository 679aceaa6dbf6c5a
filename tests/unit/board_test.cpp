// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/board.h"

#include <boost/test/unit_test.hpp>

using namespace dlrover;
using namespace dlrover::pmix;

namespace {

const Asker ann{"g1", 0, "n0"}, bob{"g1", 1, "n1"}, ann_again{"g2", 0, "n0"}, other_on_n0{"g1", 2, "n0"};

Notice notice_of(const Asker &by, const std::string &key, NoticeRange range = NoticeRange::Group,
                 std::size_t bytes = 1) {
    Notice notice;
    notice.key = key;
    notice.range = range;
    notice.name_space = by.name_space;
    notice.rank = by.rank;
    notice.node = by.node;
    notice.value.assign(bytes, static_cast<std::uint8_t>(by.rank + 1));
    return notice;
}

Change post_of(const Asker &by, const std::vector<std::string> &keys, NoticeRange range = NoticeRange::Group,
               std::size_t bytes = 1) {
    Change change;
    change.by = by;
    for (const auto &key : keys) change.notices.push_back(notice_of(by, key, range, bytes));
    return change;
}

Change removal_of(const Asker &by, std::vector<std::string> keys, std::optional<NoticeRange> range = {}) {
    Change change;
    change.by = by;
    change.take_down = true;
    change.keys = std::move(keys);
    change.range = range;
    return change;
}

std::size_t count(const Board &board, const Asker &by, std::vector<std::string> keys,
                  NoticeRange range = NoticeRange::Group) {
    return board.find({by, std::move(keys), range, false, 0}).size();
}

bool is(Outcome found, Outcome wanted) {
    return found == wanted;
}

World world_of(std::uint64_t number, std::vector<std::string> nodes) {
    World world;
    world.generation = {Term(1), number};
    world.nodes = std::move(nodes);
    return world;
}

}  // namespace

BOOST_AUTO_TEST_CASE(what_is_published_is_found_until_it_is_taken_down) {
    Board board;
    BOOST_TEST(is(board.apply(post_of(ann, {"a", "b"}), "g1"), Outcome::Done));
    BOOST_TEST(board.version.changes == 1u);
    auto found = board.find({bob, {"b", "c", "a"}, NoticeRange::Group, false, 0});
    BOOST_REQUIRE(found.size() == 2u);
    BOOST_TEST(found[0].key == "b");
    BOOST_TEST(found[0].name_space == "g1");
    BOOST_TEST(found[1].value == proto::Bytes{1});
    BOOST_TEST(is(board.apply(removal_of(bob, {"a"}), "g1"), Outcome::Unknown), "it is another's");
    BOOST_TEST(is(board.apply(removal_of(bob, {}), "g1"), Outcome::Done));
    BOOST_TEST(board.size() == 2u);
    BOOST_TEST(is(board.apply(removal_of(ann, {"a"}), "g1"), Outcome::Done));
    BOOST_TEST(count(board, bob, {"a", "b"}) == 1u);
    BOOST_TEST(is(board.apply(removal_of(ann, {}), "g1"), Outcome::Done));
    BOOST_TEST(board.size() == 0u);
}

BOOST_AUTO_TEST_CASE(a_key_is_there_once_in_its_range) {
    Board board;
    BOOST_TEST(is(board.apply(post_of(ann, {"a"}), "g1"), Outcome::Done));
    BOOST_TEST(is(board.apply(post_of(bob, {"b", "a"}), "g1"), Outcome::Duplicate));
    BOOST_TEST(board.size() == 1u, "all of it or nothing");
    BOOST_TEST(board.version.changes == 1u);
    BOOST_TEST(is(board.apply(post_of(bob, {"c", "c"}), "g1"), Outcome::Duplicate));
    for (auto range : {NoticeRange::Process, NoticeRange::Node, NoticeRange::Namespace})
        for (const Asker &by : {ann, bob}) {
            bool first = by.rank == 0 || range != NoticeRange::Namespace;
            BOOST_TEST(
                is(board.apply(post_of(by, {"a"}, range), "g1"), first ? Outcome::Done : Outcome::Duplicate));
        }
    BOOST_TEST(is(board.apply(post_of(other_on_n0, {"a"}, NoticeRange::Node), "g1"), Outcome::Duplicate));
}

BOOST_AUTO_TEST_CASE(ranges_bound_who_sees_what) {
    Board board;
    board.apply(post_of(ann, {"node"}, NoticeRange::Node), "g1");
    board.apply(post_of(ann, {"own"}, NoticeRange::Process), "g1");
    board.apply(post_of(ann, {"world"}, NoticeRange::Namespace), "g1");
    board.apply(post_of(ann, {"all"}), "g1");
    std::vector<std::string> keys{"node", "own", "world", "all"};
    BOOST_TEST(count(board, ann, keys) == 4u);
    BOOST_TEST(count(board, other_on_n0, keys) == 3u);
    BOOST_TEST(count(board, bob, keys) == 2u);
    BOOST_TEST(count(board, ann_again, keys) == 2u);
    BOOST_TEST(count(board, bob, keys, NoticeRange::Node) == 0u, "published on his node");
    BOOST_TEST(count(board, other_on_n0, keys, NoticeRange::Process) == 0u);
    board.apply(post_of(ann, {"all"}, NoticeRange::Process), "g1");
    auto found = board.find({ann, {"all"}, NoticeRange::Group, false, 0});
    BOOST_REQUIRE(found.size() == 1u);
    BOOST_TEST((found[0].range == NoticeRange::Process), "the one that is for the fewest");
    BOOST_TEST(is(board.apply(removal_of(ann, {"all"}, NoticeRange::Group), "g1"), Outcome::Done));
    BOOST_TEST(count(board, ann, {"all"}) == 1u);
}

BOOST_AUTO_TEST_CASE(the_next_generation_keeps_what_is_the_groups) {
    Board board;
    for (auto range : {NoticeRange::Group, NoticeRange::Namespace, NoticeRange::Process})
        board.apply(post_of(ann, {"a"}, range), "g1");
    for (const Asker &by : {ann, bob}) board.apply(post_of(by, {"n"}, NoticeRange::Node), "g1");
    Change brief = post_of(ann, {"brief"});
    brief.notices[0].brief = true;
    board.apply(brief, "g1");
    board.enter(world_of(2, {"n0", "n2"}));
    BOOST_TEST(board.size() == 2u);
    BOOST_TEST(count(board, ann_again, {"a", "n"}) == 2u);
    BOOST_TEST((board.version == BoardVersion{{Term(1), 2}, 0}));
    BOOST_TEST(is(board.apply(post_of(ann_again, {"a"}), "g2"), Outcome::Done), "those ranks are gone");
    auto found = board.find({ann_again, {"a"}, NoticeRange::Group, false, 0});
    BOOST_TEST(found.at(0).name_space == "g2");
    BOOST_TEST(is(board.apply(post_of(ann_again, {"a"}), "g2"), Outcome::Duplicate));
    BOOST_TEST(is(board.apply(removal_of(ann_again, {}), "g2"), Outcome::Done));
    BOOST_TEST(count(board, ann_again, {"n"}) == 1u, "not all that others have left");
    BOOST_TEST(is(board.apply(removal_of(ann_again, {"n"}), "g2"), Outcome::Done));
    BOOST_TEST(board.size() == 0u);
}

BOOST_AUTO_TEST_CASE(a_board_has_bounds) {
    Board board;
    std::size_t most = 0;
    while (is(board.apply(post_of(ann, {"a" + std::to_string(most)}, NoticeRange::Group, 100000), "g1"),
              Outcome::Done))
        ++most;
    BOOST_TEST(most == 10u);
    BOOST_TEST(is(board.apply(post_of(ann, {"big"}, NoticeRange::Group, 100000), "g1"), Outcome::TooLarge));
    BOOST_TEST(board.size() == most);
    BOOST_TEST(is(board.apply(removal_of(ann, {"a3"}), "g1"), Outcome::Done));
    BOOST_TEST(is(board.apply(post_of(ann, {"big"}, NoticeRange::Group, 100000), "g1"), Outcome::Done));
    board.apply(removal_of(ann, {}), "g1");
    for (std::size_t i = 0; i < Board::max_notices; ++i) board.apply(post_of(ann, {std::to_string(i)}), "g1");
    BOOST_TEST(board.size() == Board::max_notices);
    BOOST_TEST(is(board.apply(post_of(ann, {"more"}), "g1"), Outcome::TooLarge));
    BOOST_TEST(encode_board(board, true).size() < max_data_bytes, "it is one message");
}

BOOST_AUTO_TEST_CASE(boards_and_changes_are_what_they_were) {
    Board board;
    board.apply(post_of(ann, {"a", "b"}), "g1");
    board.apply(post_of(bob, {"a"}, NoticeRange::Node), "g1");
    board.version.generation = {Term(3), 4};
    auto again = decode_board(encode_board(board, true));
    BOOST_REQUIRE(again.ok());
    BOOST_TEST((again->version == board.version));
    BOOST_TEST(encode_board(*again, true) == encode_board(board, true));
    BOOST_TEST(decode_board(encode_board(board, false))->size() == 0u);
    auto change = decode_change(encode_change(removal_of(ann, {"a"}, NoticeRange::Node)));
    BOOST_REQUIRE(change.ok());
    BOOST_TEST(change->keys == std::vector<std::string>{"a"});
    BOOST_TEST((change->range == NoticeRange::Node));
    BOOST_TEST(change->take_down);
    BOOST_TEST(!decode_change(encode_change(removal_of(ann, {})))->range.has_value());
}

BOOST_AUTO_TEST_CASE(changes_that_can_not_be_are_refused) {
    Change change = post_of(ann, {"a"});
    BOOST_TEST(decode_change(encode_change(change)).ok());
    change.take_down = true;
    BOOST_TEST(!decode_change(encode_change(change)).ok());
    BOOST_TEST(!decode_change(encode_change(post_of(ann, {}))).ok());
    BOOST_TEST(!decode_change(encode_change(post_of(ann, {""}))).ok());
    BOOST_TEST(!decode_change(encode_change(post_of(ann, {std::string(512, 'k')}))).ok());
    BOOST_TEST(!decode_change(encode_change(post_of(ann, {"a"}, NoticeRange::Group, 0))).ok());
    BOOST_TEST(!decode_change(encode_change(post_of({"", 0, "n0"}, {"a"}))).ok());
    BOOST_TEST(!decode_change(encode_change(post_of(ann, {"a"}, static_cast<NoticeRange>(9)))).ok());
    BOOST_TEST(!decode_change(proto::Bytes(100, 1)).ok());
}
