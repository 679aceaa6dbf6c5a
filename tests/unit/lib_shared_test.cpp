// SPDX-License-Identifier: Apache-2.0
// Chunks that ranks of one node hold alike: the C interface of each rank against its own daemon.
#include <unistd.h>

#include <array>
#include <boost/test/unit_test.hpp>

#include "lib_fake_daemon.h"
#include "lib_fixture.h"

using namespace dlrover;
using namespace dlrover::test;

namespace {

constexpr std::size_t large = 50000, small = 100;  // floats
constexpr std::array<const char *, 5> names{"a", "b", "c", "d", "e"};

/// A world of 4 ranks, of which the node has some, each with a daemon.
struct Node : Environment {
    Node() : Node(0, 4) {}
    Node(std::uint32_t first, std::uint32_t count) : first_(first), count_(count) {
        for (std::uint32_t i = 0; i < count; ++i) daemons.push_back(std::make_unique<FakeDaemon>());
        for (auto &daemon : daemons)
            for (std::uint32_t i = 0; i < count; ++i) daemon->neighbours[first + i] = daemons[i].get();
    }
    FakeDaemon &daemon(std::uint32_t rank) { return *daemons[rank - first_]; }
    Context context(std::uint32_t rank) {
        manage(daemon(rank).socket_path());
        ::setenv("RANK", std::to_string(rank).c_str(), 1);
        ::setenv("WORLD_SIZE", "4", 1);
        ::setenv("LOCAL_RANK", std::to_string(rank - first_).c_str(), 1);
        ::setenv("LOCAL_WORLD_SIZE", std::to_string(count_).c_str(), 1);
        return open_context();
    }
    std::vector<std::unique_ptr<FakeDaemon>> daemons;

  private:
    std::uint32_t first_, count_;
};

std::vector<float> content(std::size_t i, std::uint64_t step) {
    return numbers(i == 4 ? small : large, static_cast<float>(100000 * i + step));
}

struct Dealt {
    std::array<dlrover_chunk, 5> chunks;
    std::array<std::uint32_t, 5> keepers;
};

/// Four large chunks and a small one, of these ranks.
Dealt deal(dlrover_context *c, std::vector<std::uint32_t> ranks = {}) {
    Dealt dealt;
    for (std::size_t i = 0; i < 5; ++i) dealt.chunks[i] = floats(names[i], i == 4 ? small : large);
    BOOST_REQUIRE_MESSAGE(dlrover_share(c, ranks.size(), ranks.empty() ? nullptr : ranks.data(), 5,
                                        dealt.chunks.data(), dealt.keepers.data()) == DLROVER_OK,
                          dlrover_error_text());
    return dealt;
}

bool own(const Dealt &dealt, std::size_t i, std::uint32_t rank) {
    return dealt.keepers[i] == DLROVER_NO_KEEPER || dealt.keepers[i] == rank;
}

int save_dealt(dlrover_context *c, std::uint32_t rank, std::uint64_t step, const Dealt &dealt,
               std::vector<std::uint32_t> ranks = {}, std::size_t left_out = 9) {
    dlrover_save *save = nullptr;
    if (int code = dlrover_save_begin(c, step, 3 * large * 4, &save); code != DLROVER_OK) return code;
    int code = dlrover_save_add_shared(save, ranks.size(), ranks.empty() ? nullptr : ranks.data(), 5,
                                       dealt.chunks.data(), dealt.keepers.data());
    for (std::size_t i = 0; i < 5 && code == DLROVER_OK; ++i) {
        if (!own(dealt, i, rank) || i == left_out) continue;
        auto data = content(i, step);
        code = dlrover_save_add(save, &dealt.chunks[i], data.data(), data.size() * 4);
    }
    if (code == DLROVER_OK) return dlrover_save_commit(save);
    dlrover_save_abort(save);
    return code;
}

void save_all(Node &node, std::uint64_t step) {
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
        auto c = node.context(rank);
        BOOST_REQUIRE_MESSAGE(save_dealt(c.get(), rank, step, deal(c.get())) == DLROVER_OK,
                              dlrover_error_text());
    }
}

void check_all_there(dlrover_context *c, std::uint64_t step) {
    dlrover_restore *raw = nullptr;
    BOOST_REQUIRE_MESSAGE(dlrover_restore_open(c, &raw) == DLROVER_OK, dlrover_error_text());
    Restore restore(raw);
    BOOST_TEST(dlrover_restore_step(raw) == static_cast<std::int64_t>(step));
    for (std::size_t i = 0; i < 5; ++i) {
        dlrover_chunk chunk;
        const void *data;
        std::uint64_t bytes;
        BOOST_REQUIRE(dlrover_restore_find(raw, names[i], &chunk, &data, &bytes) == DLROVER_OK);
        auto expected = content(i, step);
        BOOST_REQUIRE(bytes == expected.size() * 4);
        BOOST_TEST(std::memcmp(data, expected.data(), bytes) == 0, names[i]);
        std::uint64_t offset = 5, shape = 10;
        std::vector<float> part(10);
        BOOST_TEST(dlrover_restore_read(raw, names[i], DLROVER_FLOAT32, 1, &offset, &shape, part.data(),
                                        40) == DLROVER_OK);
        BOOST_TEST(std::memcmp(part.data(), expected.data() + 5, 40) == 0);
    }
}

void refused(Node &node, std::uint32_t rank, const std::string &words) {
    auto c = node.context(rank);
    dlrover_restore *restore = nullptr;
    BOOST_TEST(dlrover_restore_open(c.get(), &restore) != DLROVER_OK);
    BOOST_TEST(std::string(dlrover_error_text()).find(words) != std::string::npos, dlrover_error_text());
    for (int i = 0; i < 500 && node.daemon(rank).last_restore_done().text.empty(); ++i) ::usleep(10000);
    BOOST_TEST(!node.daemon(rank).last_restore_done().ok);
}

struct HalfNode : Node {
    HalfNode() : Node(2, 2) {}
};

}  // namespace

BOOST_AUTO_TEST_SUITE(lib_shared)

BOOST_FIXTURE_TEST_CASE(each_large_chunk_is_kept_by_one_rank, Node) {
    save_all(*this, 3);
    std::uint64_t sum = 0;
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
        auto seal = daemon(rank).sealed().at(0);
        BOOST_TEST(seal.data_bytes < (large + 2 * small) * 4, "one large chunk each");
        BOOST_TEST(seal.shared.size() == 3u);
        sum += seal.data_bytes;
        for (const auto &with : seal.shared) {
            auto theirs = daemon(with->rank).sealed().at(0);
            for (const auto &back : theirs.shared)
                if (back->rank == rank)
                    BOOST_TEST((back->kept_by == with->kept_for && back->kept_for == with->kept_by));
            BOOST_TEST(with->kept_by != 0u);
        }
    }
    BOOST_TEST(sum < 4 * (large + 2 * small) * 4);
    for (std::uint32_t rank = 0; rank < 4; ++rank) check_all_there(context(rank).get(), 3);
}

BOOST_FIXTURE_TEST_CASE(restores_leave_the_slots_fit_for_saving, Node) {
    for (std::uint64_t step = 1; step < 7; ++step) {
        save_all(*this, step);
        auto c = context(2);
        check_all_there(c.get(), step);
        check_all_there(c.get(), step);
    }
}

BOOST_FIXTURE_TEST_CASE(the_order_of_the_list_says_nothing, Node) {
    auto c = context(1);
    Dealt dealt = deal(c.get());
    std::array<dlrover_chunk, 2> turned{floats("d", large), floats("b", large)};
    std::array<dlrover_chunk, 2> straight{turned[1], turned[0]};
    std::array<std::uint32_t, 2> a, b;
    BOOST_TEST(dlrover_share(c.get(), 0, nullptr, 2, turned.data(), a.data()) == DLROVER_OK);
    BOOST_TEST(dlrover_share(c.get(), 0, nullptr, 2, straight.data(), b.data()) == DLROVER_OK);
    BOOST_TEST((a[0] == b[1] && a[1] == b[0]));
    BOOST_TEST(dealt.keepers[4] == DLROVER_NO_KEEPER, "the small one is everybody's own");
    BOOST_TEST(dealt.chunks[4].replica == 0u);
}

BOOST_FIXTURE_TEST_CASE(bytes_are_dealt_evenly, Node) {
    auto c = context(0);
    std::vector<dlrover_chunk> chunks;
    std::vector<std::string> called;
    for (int i = 0; i < 100; ++i) called.push_back("w" + std::to_string(i));
    for (int i = 0; i < 100; ++i)
        chunks.push_back(floats(called[static_cast<std::size_t>(i)].c_str(), 20000 + 1000 * (i * 37 % 100)));
    std::vector<std::uint32_t> keepers(100);
    BOOST_REQUIRE(dlrover_share(c.get(), 0, nullptr, 100, chunks.data(), keepers.data()) == DLROVER_OK);
    std::array<std::uint64_t, 4> load{};
    for (std::size_t i = 0; i < 100; ++i) load.at(keepers[i]) += chunks[i].local_shape[0];
    auto [least, most] = std::minmax_element(load.begin(), load.end());
    BOOST_TEST(*most - *least < 20000u + 100000u / 50);
}

BOOST_FIXTURE_TEST_CASE(the_node_of_the_lowest_rank_writes, HalfNode) {
    auto c = context(3);
    for (auto [ranks, written] :
         {std::pair(std::vector<std::uint32_t>{}, false), std::pair(std::vector<std::uint32_t>{3, 2}, true),
          std::pair(std::vector<std::uint32_t>{1, 3}, false)}) {
        Dealt dealt = deal(c.get(), ranks);
        for (std::size_t i = 0; i < 4; ++i) {
            BOOST_TEST((dealt.keepers[i] == DLROVER_NO_KEEPER) == (ranks.size() == 2 && !written));
            BOOST_TEST((dealt.chunks[i].replica == 0) == (written && dealt.keepers[i] == 3));
        }
    }
}

BOOST_FIXTURE_TEST_CASE(sets_that_can_not_be_are_refused, Node) {
    auto c = context(1);
    auto chunk = floats("w", large);
    std::uint32_t keeper = 0;
    for (std::vector<std::uint32_t> ranks : {std::vector<std::uint32_t>{0, 2}, {1, 4}})
        BOOST_TEST(dlrover_share(c.get(), 2, ranks.data(), 1, &chunk, &keeper) == DLROVER_E_INVALID);
    std::uint64_t step = 0;
    for (std::uint32_t wrong : {0u, 7u}) {
        dlrover_save *save = nullptr;
        BOOST_REQUIRE(dlrover_save_begin(c.get(), ++step, 1000, &save) == DLROVER_OK);
        std::uint32_t ranks[] = {1, 2};
        BOOST_TEST(dlrover_save_add_shared(save, 2, ranks, 1, &chunk, &wrong) == DLROVER_E_INVALID);
        dlrover_save_abort(save);
    }
}

BOOST_FIXTURE_TEST_CASE(what_was_promised_has_to_be_added, Node) {
    auto c = context(0);
    Dealt dealt = deal(c.get());
    std::size_t mine = 0;
    while (dealt.keepers[mine] != 0) ++mine;
    BOOST_TEST(save_dealt(c.get(), 0, 1, dealt, {}, mine) == DLROVER_E_INVALID);
    BOOST_TEST(std::string(dlrover_error_text()).find("keeps for others") != std::string::npos);
    for (int i = 0; i < 500 && daemon(0).granted() != 0; ++i) ::usleep(10000);
    BOOST_TEST(daemon(0).granted() == 0u);
}

BOOST_FIXTURE_TEST_CASE(damage_in_a_keepers_object_is_damage_here, Node) {
    save_all(*this, 3);
    daemon(1).flip(0, 70000);
    refused(*this, 0, "in the object of rank 1, is wrong");
    refused(*this, 1, "is wrong");
}

BOOST_FIXTURE_TEST_CASE(only_the_objects_that_were_verified_are_not_read_again, Node) {
    save_all(*this, 3);
    daemon(1).flip(0, 70000);
    daemon(0).verified_told = true;
    refused(*this, 0, "in the object of rank 1, is wrong");
    daemon(1).verified_told = true;
    auto c = context(0);
    dlrover_restore *r = nullptr;
    BOOST_REQUIRE(dlrover_restore_open(c.get(), &r) == DLROVER_OK);
    dlrover_restore_close(r);
}

BOOST_FIXTURE_TEST_CASE(a_keeper_of_another_step_is_refused, Node) {
    save_all(*this, 3);
    auto c = context(2);
    BOOST_REQUIRE(save_dealt(c.get(), 2, 4, deal(c.get())) == DLROVER_OK);
    c.reset();
    refused(*this, 0, "the object of rank 2 is not of the same step");
}

BOOST_FIXTURE_TEST_CASE(a_keeper_without_the_chunk_is_refused_by_name, Node) {
    save_all(*this, 3);
    for (std::uint32_t rank = 1; rank < 4; ++rank) {
        auto c = context(rank);
        auto other = floats("another", large);
        auto data = content(0, 3);
        dlrover_save *save = nullptr;
        BOOST_REQUIRE(dlrover_save_begin(c.get(), 3, large * 4, &save) == DLROVER_OK);
        BOOST_REQUIRE(dlrover_save_add(save, &other, data.data(), large * 4) == DLROVER_OK);
        BOOST_REQUIRE(dlrover_save_commit(save) == DLROVER_OK);
    }
    refused(*this, 0, "\" should be in the object of rank ");
}

BOOST_FIXTURE_TEST_CASE(a_keeper_that_is_gone_is_told, Node) {
    save_all(*this, 3);
    daemon(0).neighbours.erase(3);
    refused(*this, 0, "no object of rank 3");
}

BOOST_FIXTURE_TEST_CASE(a_connection_that_breaks_between_the_objects_is_made_again, Node) {
    save_all(*this, 3);
    auto c = context(0);
    daemon(0).fail_once(local::Body::RestoreKept, FakeDaemon::Fault::drop_before);
    check_all_there(c.get(), 3);
}

BOOST_FIXTURE_TEST_CASE(without_a_daemon_each_keeps_its_own, Environment) {
    ::setenv("RANK", "1", 1);
    ::setenv("LOCAL_RANK", "1", 1);
    ::setenv("WORLD_SIZE", "4", 1);
    ::setenv("LOCAL_WORLD_SIZE", "4", 1);
    auto c = open_context();
    Dealt dealt = deal(c.get());
    for (std::uint32_t keeper : dealt.keepers) BOOST_TEST(keeper == DLROVER_NO_KEEPER);
    dealt.keepers[0] = 0;
    BOOST_TEST(save_dealt(c.get(), 1, 1, dealt) == DLROVER_E_INVALID);
}

BOOST_AUTO_TEST_SUITE_END()
