// SPDX-License-Identifier: Apache-2.0
// An arena whose pages the job takes.
#include <fcntl.h>

#include <boost/test/unit_test.hpp>

#include "common/manual_loop.h"
#include "daemon/arena.h"
#include "tests/unit/huge_pages.h"

using namespace dlrover;
using namespace dlrover::daemon;
using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t mib = 1u << 20;
constexpr GenerationId generation{Term(1), 1};
const Rank rank0(0), rank1(1);

struct Job final : JobMemory {
    std::optional<Allowance> allowance(Rank) const override { return allowed; }
    void fill(Rank, const ArenaSegment &segment) override { orders.push_back(segment); }
    std::optional<Allowance> allowed;
    std::vector<ArenaSegment> orders;
};

struct JobArena {
    ManualLoop loop;
    MemoryKeeper keeper{loop};
    ckpt::Prefaulter prefaulter{0};
    MemoryBudget budget{{1u << 30, 0}, [] { return std::uint64_t{1} << 40; }};
    Job job;
    Arena arena{{loop, keeper, prefaulter, budget, &job}, {"7.0", 1000, 3, true}};

    void allow(std::uint64_t limit, std::uint64_t used, std::uint64_t floor) {
        job.allowed = JobMemory::Allowance{{limit, used, "/job_7"}, floor};
    }
    static void take_pages(const ArenaSegment &segment) {
        BOOST_REQUIRE(::posix_fallocate(segment.fd->get(), 0, static_cast<off_t>(segment.bytes)) == 0);
    }
    void filled(const ArenaSegment &segment, Status status = {}) {
        arena.filled(segment.id, std::chrono::microseconds(50), std::move(status));
    }
    bool begin(Rank rank, std::uint64_t step) {
        auto place = arena.begin(rank, 7 + rank.value(), TrainStep(step), generation, 4 * mib);
        return place.ok() && place->has_value();
    }
    void copy(Rank rank, std::uint64_t step) {
        auto place =
            arena.begin_copy(rank, ckpt::lasting_holder | step, {generation, TrainStep(step)}, 4 * mib, {});
        BOOST_TEST((place.ok() && place->has_value()));
    }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(daemon_job_memory, JobArena)

BOOST_AUTO_TEST_CASE(the_job_touches_the_pages_first) {
    BOOST_TEST(arena.prepare(rank0, 4 * mib).ok());
    BOOST_REQUIRE(job.orders.size() == 3u);
    for (const auto &segment : job.orders)
        BOOST_TEST(!ckpt::has_all_pages(segment.fd->get(), 1), "nobody of ours has touched it");
    filled(job.orders[0]);
    BOOST_TEST(arena.memory().ready_bytes == 0u, "a user's word is not enough");
    take_pages(job.orders[0]);
    filled(job.orders[0]);
    BOOST_TEST(arena.memory().ready_bytes == 4 * mib);
    BOOST_TEST(arena.memory().prefault_time.count() == 100);
    filled(job.orders[0]);
    BOOST_TEST(arena.memory().prefault_time.count() == 100, "said again");
    BOOST_TEST(arena.unfilled().size() == 2u);
    BOOST_TEST(budget.held(1000).node_bytes == 0u);
    // A save does not wait for the rest.
    auto place = arena.begin(rank0, 7, TrainStep(1), generation, 4 * mib);
    BOOST_TEST((place.ok() && place->has_value()));
}

BOOST_AUTO_TEST_CASE(what_does_not_fit_the_jobs_limit_is_refused) {
    allow(100 * mib, 80 * mib, 10 * mib);
    Status refused = arena.prepare(rank0, 6 * mib);
    BOOST_TEST((refused.code() == Code::resource_exhausted));
    for (const char *part : {"12 MiB more of the job's memory", "10 MiB left", "limit of 100 MiB", "--mem"})
        BOOST_TEST(refused.message().find(part) != std::string::npos, part << " in " << refused.message());
    BOOST_TEST(job.orders.empty());
    BOOST_TEST(arena.prepare(rank0, 4 * mib).ok());
    BOOST_TEST(arena.memory().slots == 2u);
    BOOST_TEST(!arena.prepare(Rank(1), mib).ok(), "pages that are to come count: 2 MiB are left");
    // Once they are there they are the kernel's to count, whether somebody has said so or not.
    for (const auto &segment : job.orders) take_pages(segment);
    BOOST_TEST(arena.prepare(Rank(1), mib).ok());
}

/// A third slot that leaves a copy without its second one leaves no step safe but the first.
BOOST_AUTO_TEST_CASE(copies_of_others_go_before_a_third_slot) {
    arena.expect({{rank0}, {rank1}});
    allow(100 * mib, 0, 84 * mib);  // room for four slots
    BOOST_TEST(arena.prepare(rank0, 4 * mib).ok());
    BOOST_TEST(arena.memory().slots == 2u);
    BOOST_TEST(arena.memory().need_bytes == 16 * mib);
    for (const auto &segment : job.orders) take_pages(segment);
    allow(100 * mib, 0, 92 * mib);
    copy(rank1, 1);
    copy(rank1, 2);
    allow(100 * mib, 0, 70 * mib);
    BOOST_TEST(arena.prepare(rank0, 4 * mib).ok());
    BOOST_TEST(arena.memory().slots == 3u, "the copies have what they need");
}

/// Two slots for the parity, two for what is on its way into it.
BOOST_AUTO_TEST_CASE(parities_of_others_go_before_a_third_slot) {
    arena.expect({{rank0}, {parity_place(0, rank1), passage}});
    allow(100 * mib, 0, 73 * mib);  // room for six slots
    BOOST_TEST(arena.prepare(rank0, 4 * mib).ok());
    BOOST_TEST(arena.memory().slots == 2u);
    allow(100 * mib, 0, 64 * mib);  // and for the seventh, of which two are there
    BOOST_TEST(arena.prepare(rank0, 4 * mib).ok());
    BOOST_TEST(arena.memory().slots == 3u);
}

/// In another world its ranks have other numbers.
BOOST_AUTO_TEST_CASE(whose_copy_it_was_may_run_here_next) {
    arena.expect({{rank0}, {rank1}});
    copy(rank1, 1);
    arena.expect({{rank1}, {rank0}});
    // 4 MiB are there: for six more it has room, of which two are for the guest.
    allow(100 * mib, 0, 76 * mib);
    BOOST_TEST(begin(rank1, 2));
    BOOST_TEST(arena.memory().slots == 3u);
    BOOST_TEST(arena.memory().need_bytes == 20 * mib);
}

/// What a save has taken of its slots by then is no measure of what it is going to take.
BOOST_AUTO_TEST_CASE(slots_that_others_were_promised_are_theirs) {
    arena.expect({{rank0, rank1}, {}});
    allow(100 * mib, 0, 76 * mib);  // six
    BOOST_TEST(begin(rank0, 1));
    BOOST_TEST(arena.memory().slots == 3u);
    for (const auto &segment : job.orders) take_pages(segment);
    allow(100 * mib, 0, 84 * mib);  // four, and one is there
    BOOST_TEST(begin(rank1, 1));
    BOOST_TEST(arena.memory().slots == 2u);
}

BOOST_AUTO_TEST_CASE(each_world_is_counted_anew) {
    arena.expect({{rank0}, {}});
    allow(100 * mib, 0, 88 * mib);  // three
    BOOST_TEST(begin(rank0, 1));
    BOOST_TEST(arena.memory().slots == 3u);
    for (const auto &segment : job.orders) take_pages(segment);
    arena.expect({{rank0}, {rank1}});
    BOOST_TEST(begin(rank0, 2));
    BOOST_TEST(arena.memory().slots == 2u);
}

/// After a restart of the daemon.
BOOST_AUTO_TEST_CASE(a_copy_of_a_former_daemon_is_no_rank_of_its_own) {
    for (std::uint64_t step : {1u, 2u}) {
        BOOST_TEST(begin(rank0, step));
        copy(rank1, step);
    }
    Arena next{{loop, keeper, prefaulter, budget, &job}, {"7.0", 1000, 3, true}};
    for (auto &kept : keeper.copy())
        next.restore(*parse_record_name(kept.name), *decode_record(kept.value), std::move(kept.fd));
    next.finish_restore();
    next.expect({{rank0}, {rank1}});
    for (const auto &[rank, segment] : next.unfilled()) take_pages(segment);
    allow(100 * mib, 0, 94 * mib);  // one: what rank 0's third takes
    BOOST_TEST(next.prepare(rank0, 4 * mib).ok());
    BOOST_TEST(next.memory().slots == 3u);
    BOOST_TEST(next.memory().need_bytes == 20 * mib);
}

/// Large ones may come again.
BOOST_AUTO_TEST_CASE(a_small_save_gets_no_third_slot_where_a_large_one_has_none) {
    allow(100 * mib, 0, 76 * mib);
    BOOST_TEST(arena.prepare(rank0, 12 * mib).ok());
    BOOST_TEST(arena.memory().slots == 2u);
    for (const auto &segment : job.orders) take_pages(segment);
    allow(100 * mib, 0, 92 * mib);
    loop.advance(1s);
    BOOST_TEST(begin(rank0, 1));
    BOOST_TEST(arena.memory().slots == 2u);
}

BOOST_AUTO_TEST_CASE(a_third_slot_comes_once_there_is_room) {
    allow(100 * mib, 0, 90 * mib);
    BOOST_TEST(begin(rank0, 1));
    BOOST_TEST(arena.memory().slots == 2u);
    for (const auto &segment : job.orders) take_pages(segment);
    allow(100 * mib, 0, 50 * mib);
    BOOST_TEST(begin(rank0, 2));
    BOOST_TEST(arena.memory().slots == 2u, "it is not looked at all the time");
    loop.advance(1s);
    BOOST_TEST(begin(rank0, 3));
    BOOST_TEST(arena.memory().slots == 3u);
}

/// A third slot that was promised, and not made yet, is no error where the room is gone.
BOOST_AUTO_TEST_CASE(a_save_is_skipped_where_only_the_third_slot_has_no_room) {
    allow(100 * mib, 0, 88 * mib);
    BOOST_TEST(begin(rank0, 1));
    BOOST_TEST(begin(rank0, 2));
    BOOST_TEST(arena.memory().slots == 3u);
    for (const auto &segment : job.orders) take_pages(segment);
    allow(100 * mib, 0, 100 * mib);
    auto place = arena.begin(rank0, 7, TrainStep(3), generation, 4 * mib);
    BOOST_TEST((place.ok() && !place->has_value()));
    auto larger = arena.begin(rank0, 7, TrainStep(3), generation, 6 * mib);
    BOOST_TEST((larger.status().code() == Code::resource_exhausted));
}

/// As large as this node's may be what was smaller in another world.
BOOST_AUTO_TEST_CASE(copies_of_a_former_world_may_grow) {
    arena.expect({{rank0}, {rank1}});
    for (std::uint64_t step : {1u, 2u}) copy(rank1, step);
    for (const auto &segment : job.orders) take_pages(segment);
    arena.expect({{rank0}, {rank1}});
    allow(100 * mib, 0, 76 * mib);  // three slots of 8 MiB; two, and what the copies still lack, is 24 MiB
    BOOST_TEST(arena.prepare(rank0, 8 * mib).ok());
    BOOST_TEST(arena.memory().slots == 2u);
}

BOOST_AUTO_TEST_CASE(all_ranks_of_a_node_get_as_many) {
    arena.expect({{rank0, rank1}, {}});
    allow(100 * mib, 0, 80 * mib);  // five
    for (Rank rank : {rank0, rank1}) {
        BOOST_TEST(arena.prepare(rank, 4 * mib).ok());
        BOOST_TEST(arena.memory().slots == 2u);
    }
    BOOST_TEST(arena.memory().bytes == 16 * mib);
}

/// What a smaller world gave is given back where it has nothing in it.
BOOST_AUTO_TEST_CASE(a_larger_world_takes_back_a_third_slot) {
    arena.expect({{rank0}, {}});
    BOOST_TEST(arena.prepare(rank0, 4 * mib).ok());
    for (const auto &segment : job.orders) take_pages(segment);
    BOOST_TEST(arena.memory().bytes == 12 * mib);
    arena.expect({{rank0}, {rank1}});
    BOOST_TEST(arena.memory().slots == 3u, "as it has");
    allow(100 * mib, 0, 96 * mib);
    BOOST_TEST(begin(rank0, 1));
    BOOST_TEST(arena.memory().slots == 2u);
    BOOST_TEST(arena.memory().bytes == 8 * mib);
}

BOOST_AUTO_TEST_CASE(a_slot_that_gets_no_pages_is_given_up) {
    BOOST_TEST(arena.prepare(rank0, 4 * mib).ok());
    auto place = arena.begin(rank0, 7, TrainStep(1), generation, 4 * mib);
    BOOST_REQUIRE((place.ok() && place->has_value()));
    for (const auto &segment : job.orders) filled(segment, Status(Code::resource_exhausted, "at its limit"));
    BOOST_TEST(arena.memory().bytes == 4 * mib, "the one that is being written stays");
    allow(100 * mib, 99 * mib, 0);
    auto next = arena.begin(rank0, 7, TrainStep(2), generation, 4 * mib);
    BOOST_TEST((next.status().code() == Code::resource_exhausted), "it does not take them in a save either");
}

BOOST_AUTO_TEST_CASE(other_trouble_leaves_the_memory_there) {
    BOOST_TEST(arena.prepare(rank0, 4 * mib).ok());
    filled(job.orders[0], Status(Code::system, "no such call"));
    filled({SegmentId(12345), mib, nullptr});
    BOOST_TEST(arena.memory().bytes == 12 * mib);
    BOOST_TEST(arena.memory().ready_bytes == 0u);
}

/// Where the system has none, it says nothing.
BOOST_AUTO_TEST_CASE(a_job_has_no_pages_that_are_not_charged_to_it) {
    test::HugePages pages(8);
    if (pages.free() < 8) {
        BOOST_TEST_MESSAGE("skipped: no huge pages of 2 MiB can be reserved here");
        return;
    }
    BOOST_TEST(arena.prepare(rank0, 4 * mib).ok());
    BOOST_REQUIRE(job.orders.size() == 3u);
    for (const auto &segment : job.orders) BOOST_TEST(!test::has_huge_pages(segment.fd->get()));
}

BOOST_AUTO_TEST_SUITE_END()
