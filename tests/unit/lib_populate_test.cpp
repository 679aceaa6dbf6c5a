// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>

#include <boost/test/unit_test.hpp>
#include <cstring>
#include <future>
#include <string>

#include "ckpt/mapping.h"
#include "ckpt/segment.h"
#include "lib/background_populate.h"
#include "lib/fresh_memory.h"
#include "tests/unit/huge_pages.h"
#include "tests/unit/smaps.h"

using namespace dlrover;
using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t bytes = std::uint64_t{40} << 20;  // two parts and a piece

template <typename Value>
Value taken(Result<Value> result) {
    BOOST_REQUIRE(result.ok());
    return std::move(*result);
}

struct Slot {
    UniqueFd file = taken(ckpt::create_segment("segment", bytes));
    ckpt::SegmentRange range = map();

    ckpt::SegmentRange map(ckpt::Access access = ckpt::Access::read_write) {
        std::vector<ckpt::SegmentGrant> grants;
        grants.push_back({1, bytes, UniqueFd(::fcntl(file.get(), F_DUPFD_CLOEXEC, 3))});
        return taken(ckpt::SegmentRange::map(std::move(grants), access, ckpt::PageTables::later));
    }
    std::uint64_t allocated() const { return ckpt::held_bytes(file.get()); }
    /// As the daemon does.
    void allocate(std::uint64_t end) {
        auto mapping = taken(ckpt::Mapping::shared(file.get(), end));
        std::memset(mapping.base(), 1, end);
    }
    std::span<std::byte> memory() const { return {range.base(), range.bytes()}; }
    /// What of the mapping has page tables.
    std::uint64_t resident() const { return test::smaps_bytes(range.base(), "Rss"); }
};

bool wait_until(auto condition) {
    for (int i = 0; i < 1000 && !condition(); ++i) std::this_thread::sleep_for(10ms);
    return condition();
}

boost::test_tools::assertion_result transparent_ones_can_be_given(boost::unit_test::test_unit_id) {
    boost::test_tools::assertion_result answer(test::TransparentHugePages::may_be_set() &&
                                               test::HugePages(16).free() >= 16);
    answer.message() << "transparent huge pages can not be allowed for shared memory here (root can, where "
                        "memory is free in one piece)";
    return answer;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(background_populate)

BOOST_AUTO_TEST_CASE(pages_are_waited_for_and_not_made) {
    Slot slot;
    lib::BackgroundPopulate background;
    background.start({slot.memory()});
    std::this_thread::sleep_for(100ms);
    BOOST_TEST(slot.allocated() == 0u);
    BOOST_TEST(slot.resident() == 0u);
    slot.allocate(bytes / 2 + 4096);  // in the middle of the second part
    BOOST_TEST(wait_until([&] { return slot.resident() == 16u << 20; }));
    std::this_thread::sleep_for(50ms);
    BOOST_TEST(slot.resident() == 16u << 20);
    BOOST_TEST(!background.done(slot.range.base()));
    slot.allocate(bytes);
    BOOST_TEST(wait_until([&] { return background.done(slot.range.base()); }));
    BOOST_TEST(slot.resident() == bytes);
}

BOOST_AUTO_TEST_CASE(the_longer_it_waits_the_less_it_looks) {
    BOOST_TEST(lib::pause_after(0ms).count() == 10);
    BOOST_TEST(lib::pause_after(160ms).count() == 10);
    BOOST_TEST(lib::pause_after(8s).count() == 500);
    BOOST_TEST(lib::pause_after(9min).count() == 1000);
}

BOOST_AUTO_TEST_CASE(it_ends_when_it_is_told_to) {
    Slot first, second;
    lib::BackgroundPopulate background;
    first.allocate(bytes);
    background.start({first.memory(), second.memory()});
    BOOST_TEST(wait_until([&] { return background.done(first.range.base()); }));
    auto begun = std::chrono::steady_clock::now();
    background.stop();
    BOOST_TEST((std::chrono::steady_clock::now() - begun < 1s));
    BOOST_TEST(background.done(first.range.base()));
    BOOST_TEST(!background.done(second.range.base()));
    background.start({second.memory()});
    second.allocate(bytes);
    BOOST_TEST(wait_until([&] { return background.done(second.range.base()); }));
}

BOOST_AUTO_TEST_CASE(in_the_foreground_all_of_it) {
    Slot slot;
    ckpt::populate(slot.memory().data(), bytes);
    BOOST_TEST(slot.allocated() == bytes);
    BOOST_TEST(slot.resident() == bytes);
    slot.memory()[bytes - 1] = std::byte{1};
    BOOST_TEST(ckpt::has_pages(slot.memory().data(), bytes));
}

BOOST_AUTO_TEST_CASE(by_threads_all_of_it_whatever_is_there) {
    for (unsigned threads : {1u, 3u})
        for (std::uint64_t there : {std::uint64_t{0}, bytes / 2 + 4096, bytes}) {
            Slot slot;
            if (there != 0) slot.allocate(there);
            lib::populate_now(slot.memory(), threads);
            BOOST_TEST(slot.allocated() == bytes);
            // Pages that the kernel moves at that moment have no entry: seen once, 5 of 10,240, beside
            // builds.
            wait_until([&] { return slot.resident() == bytes; });
            BOOST_TEST(slot.resident() == bytes);
        }
    lib::populate_now({}, 2);
}

BOOST_AUTO_TEST_CASE(fresh_memory_is_made_where_it_is_touched) {
    constexpr std::uint64_t part = std::uint64_t{2} << 20;
    Slot slot;
    lib::FreshMemory fresh(slot.memory());
    fresh.touch(slot.range.base() + 5 * part + 100, 0);
    BOOST_TEST(slot.allocated() == 0u);
    fresh.touch(slot.range.base() + 5 * part + 100, 1);
    BOOST_TEST(slot.allocated() == part);
    fresh.touch(slot.range.base() + 8 * part - 1, 2);  // on both sides of a border
    BOOST_TEST(slot.allocated() == 3 * part);
    fresh.touch(slot.range.base() + 5 * part, 2 * part);
    BOOST_TEST(slot.resident() == 4 * part);
    fresh.touch(slot.range.base() + bytes - 1, 1);
    BOOST_TEST(slot.resident() == 5 * part);
    fresh.touch(slot.range.base(), bytes);
    BOOST_TEST(slot.resident() == bytes);
    BOOST_TEST(slot.allocated() == bytes);
}

BOOST_FIXTURE_TEST_CASE(fresh_memory_whose_last_part_is_short, test::TransparentHugePagesHeld) {
    Slot slot;
    lib::FreshMemory fresh(slot.memory().first((4u << 20) + 8192));
    fresh.touch(slot.range.base() + (4u << 20), 8192);
    BOOST_TEST(slot.allocated() ==
               (test::transparent_huge_pages_are_given() ? test::huge_page_bytes : 8192u));
}

BOOST_AUTO_TEST_CASE(to_read_only) {
    Slot slot;
    slot.allocate(bytes / 2);
    slot.range = slot.map(ckpt::Access::read_only);
    lib::populate_now(slot.memory(), 2);
    BOOST_TEST(slot.resident() == bytes);
}

BOOST_FIXTURE_TEST_CASE(transparent_huge_pages_are_asked_for, test::TransparentHugePages,
                        *boost::unit_test::precondition(transparent_ones_can_be_given)) {
    Slot slot;
    lib::FreshMemory fresh(slot.memory());
    fresh.touch(slot.range.base(), 1);
    BOOST_TEST(slot.allocated() == test::huge_page_bytes);
    lib::populate_now(slot.memory(), 2);
    BOOST_TEST(slot.allocated() == bytes);
    BOOST_TEST(test::smaps_bytes(slot.range.base(), "ShmemPmdMapped") > 0u);
    // As the daemon, or the agent, makes them.
    Slot other;
    ckpt::Prefaulter prefaulter(0);
    std::promise<Status> filled;
    prefaulter.add(UniqueFd(::fcntl(other.file.get(), F_DUPFD_CLOEXEC, 3)), bytes,
                   std::make_shared<std::atomic<bool>>(false),
                   [&](ckpt::Prefaulter::Report report) { filled.set_value(std::move(report.status)); });
    BOOST_TEST(filled.get_future().get().ok());
    lib::populate_now(other.memory(), 1);
    BOOST_TEST(test::smaps_bytes(other.range.base(), "ShmemPmdMapped") > 0u);
}

BOOST_AUTO_TEST_SUITE_END()
