// SPDX-License-Identifier: Apache-2.0
#include "ckpt/segment.h"

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <future>
#include <numeric>

#include "tests/unit/huge_pages.h"

using namespace dlrover;
using namespace dlrover::ckpt;
using namespace dlrover::test;
using namespace std::chrono_literals;

namespace {

/// Whether it does what it is asked, after what it was asked before.
bool comes_to(Prefaulter &prefaulter) {
    auto promise = std::make_shared<std::promise<void>>();
    auto future = promise->get_future();
    auto fd = create_segment("test", 4096);
    prefaulter.add(std::move(*fd), 4096, std::make_shared<std::atomic<bool>>(false),
                   [promise](Prefaulter::Report) { promise->set_value(); });
    return future.wait_for(30s) == std::future_status::ready;
}

bool fills(Prefaulter &prefaulter, int fd, std::uint64_t bytes) {
    std::promise<Prefaulter::Report> promise;
    prefaulter.add(UniqueFd(::dup(fd)), bytes, std::make_shared<std::atomic<bool>>(false),
                   [&](Prefaulter::Report r) { promise.set_value(std::move(r)); });
    auto report = promise.get_future().get();
    BOOST_TEST(report.bytes == bytes);
    return report.status.ok();
}

struct SomeHugePages : HugePages {
    static constexpr std::uint64_t wanted = 4;
    SomeHugePages() : HugePages(wanted) {}
};

boost::test_tools::assertion_result some_can_be_reserved(boost::unit_test::test_unit_id) {
    boost::test_tools::assertion_result answer(SomeHugePages().free() >= SomeHugePages::wanted);
    answer.message()
        << "no huge pages of 2 MiB can be reserved here (root can, where memory is free in one piece)";
    return answer;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(segment)

BOOST_AUTO_TEST_CASE(its_size_cannot_be_changed) {
    auto fd = create_segment("test", 1 << 20);
    BOOST_REQUIRE(fd.ok());
    BOOST_TEST(::ftruncate(fd->get(), 4096) == -1);
    BOOST_TEST(::ftruncate(fd->get(), 2 << 20) == -1);
    struct stat st {};
    BOOST_TEST(::fstat(fd->get(), &st) == 0);
    BOOST_TEST(st.st_size == 1 << 20);
}

BOOST_AUTO_TEST_CASE(sizes_out_of_range_are_refused) {
    BOOST_TEST((create_segment("test", 0).status().code() == Code::invalid_argument));
    BOOST_TEST((create_segment("test", max_segment_bytes + 1).status().code() == Code::invalid_argument));
}

/// The policy of a mapping's first page; -1 where the kernel has none.
int policy_of(void *at, unsigned long &nodes) {
    int mode = -1;
    return ::syscall(SYS_get_mempolicy, &mode, &nodes, 8 * sizeof nodes, at, MPOL_F_ADDR) == 0 ? mode : -1;
}

BOOST_AUTO_TEST_CASE(its_pages_belong_to_a_numa_node_whoever_touches_them) {
    constexpr std::uint64_t bytes = 2 << 20;
    for (bool bound : {true, false}) {
        auto fd = create_segment("test", bytes, {false, bound ? std::optional(0u) : std::nullopt});
        BOOST_REQUIRE(fd.ok());
        void *at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd->get(), 0);
        BOOST_REQUIRE(at != MAP_FAILED);
        unsigned long nodes = 0;
        int mode = policy_of(at, nodes);
        ::munmap(at, bytes);
        if (mode < 0) {
            BOOST_TEST_MESSAGE("skipped: this kernel has no memory policies");
            return;
        }
        BOOST_TEST(mode == (bound ? MPOL_PREFERRED : MPOL_DEFAULT));
        BOOST_TEST(nodes == (bound ? 1ul : 0ul));
    }
    BOOST_TEST(create_segment("test", bytes, {false, 100000u}).ok(), "a node that can not be is no obstacle");
}

BOOST_AUTO_TEST_CASE(where_huge_pages_are_too_few_it_has_ordinary_ones) {
    std::uint64_t before = HugePages::free();
    std::uint64_t bytes = (before + HugePages::number("nr_overcommit_hugepages") + 1) * huge_page_bytes;
    if (bytes > max_segment_bytes) {
        BOOST_TEST_MESSAGE("skipped: this system has reserved more huge pages than a segment takes");
        return;
    }
    auto fd = create_segment("test", bytes, {.huge_pages = true});
    BOOST_REQUIRE(fd.ok());
    BOOST_TEST(!has_huge_pages(fd->get()));
    BOOST_TEST(held_bytes(fd->get()) == 0u);
    BOOST_TEST(HugePages::free() == before);
    BOOST_TEST(::ftruncate(fd->get(), 4096) == -1);
    Prefaulter prefaulter(0);
    BOOST_TEST(fills(prefaulter, fd->get(), bytes));
}

BOOST_FIXTURE_TEST_CASE(it_has_huge_pages_where_the_system_has_reserved_them, SomeHugePages,
                        *boost::unit_test::precondition(some_can_be_reserved)) {
    std::uint64_t available = free(), bytes = 2 * huge_page_bytes;
    BOOST_REQUIRE(available >= wanted);
    auto fd = create_segment("test", bytes, {.huge_pages = true, .numa_node = 0});
    BOOST_REQUIRE(fd.ok());
    BOOST_TEST(has_huge_pages(fd->get()));
    BOOST_TEST(held_bytes(fd->get()) == 0u, "who makes it does not wait until they are zeroed");
    BOOST_TEST(free() == available);
    auto most = create_segment("test", available * huge_page_bytes, {.huge_pages = true});
    BOOST_REQUIRE(most.ok());
    BOOST_TEST(!has_huge_pages(most->get()), "nobody else gets them");
    Prefaulter prefaulter(0);
    BOOST_TEST(fills(prefaulter, fd->get(), bytes));
    BOOST_TEST(has_all_pages(fd->get(), bytes));
    BOOST_TEST(free() == available - 2);
    BOOST_TEST(::ftruncate(fd->get(), huge_page_bytes) == -1);
    BOOST_TEST(::ftruncate(fd->get(), 4 * huge_page_bytes) == -1);
    auto *at = static_cast<unsigned char *>(
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd->get(), 0));
    BOOST_REQUIRE(at != MAP_FAILED);
    std::iota(at, at + bytes, static_cast<unsigned char>(0));
    BOOST_TEST(fills(prefaulter, fd->get(), bytes), "nothing is left to do");
    BOOST_TEST(at[bytes - 1] == 255);
    ::munmap(at, bytes);
    prefaulter.discard(UniqueFd(::dup(fd->get())), bytes);
    BOOST_REQUIRE(comes_to(prefaulter));
    BOOST_TEST(free() == available, "though somebody still holds the segment");

    auto odd = create_segment("test", bytes + 4096, {.huge_pages = true});
    BOOST_REQUIRE(odd.ok());
    BOOST_TEST(!has_huge_pages(odd->get()));
    BOOST_TEST(!has_huge_pages(create_segment("test", bytes)->get()), "nobody has asked for them");
    BOOST_TEST(free() == available);
}

BOOST_AUTO_TEST_CASE(pages_come_in_the_background) {
    constexpr std::uint64_t bytes = (64 << 20) + 4096;
    auto fd = create_segment("test", bytes);
    std::promise<Prefaulter::Report> promise;
    Prefaulter prefaulter(0);
    prefaulter.add(UniqueFd(::dup(fd->get())), bytes, std::make_shared<std::atomic<bool>>(false),
                   [&](Prefaulter::Report r) { promise.set_value(std::move(r)); });
    auto future = promise.get_future();
    BOOST_REQUIRE((future.wait_for(30s) == std::future_status::ready));
    auto report = future.get();
    BOOST_TEST(report.status.ok());
    BOOST_TEST(report.bytes == bytes);
    BOOST_TEST(held_bytes(fd->get()) == bytes);
}

BOOST_AUTO_TEST_CASE(it_stops_at_the_floor) {
    auto fd = create_segment("test", 1 << 20);
    std::promise<Prefaulter::Report> promise;
    Prefaulter prefaulter(~std::uint64_t{0} >> 1);
    prefaulter.add(UniqueFd(::dup(fd->get())), 1 << 20, std::make_shared<std::atomic<bool>>(false),
                   [&](Prefaulter::Report r) { promise.set_value(std::move(r)); });
    auto report = promise.get_future().get();
    BOOST_TEST((report.status.code() == Code::resource_exhausted));
    BOOST_TEST(report.bytes == 0u);
}

BOOST_AUTO_TEST_CASE(discarded_pages_go_back_though_others_hold_the_segment) {
    constexpr std::uint64_t bytes = 8 << 20;
    auto fd = create_segment("test", bytes);
    Prefaulter prefaulter(0);
    prefaulter.add(UniqueFd(::dup(fd->get())), bytes, std::make_shared<std::atomic<bool>>(false),
                   [](Prefaulter::Report) {});
    BOOST_REQUIRE(comes_to(prefaulter));
    BOOST_TEST(held_bytes(fd->get()) == bytes);
    prefaulter.discard(UniqueFd(::dup(fd->get())), bytes);
    BOOST_REQUIRE(comes_to(prefaulter));
    BOOST_TEST(held_bytes(fd->get()) == 0u);
    char byte = 'x';
    BOOST_TEST(::pread(fd->get(), &byte, 1, bytes - 1) == 1, "its size stays");
    BOOST_TEST(byte == '\0');
}

BOOST_AUTO_TEST_CASE(what_was_cancelled_is_not_filled_and_discarded_all_the_same) {
    constexpr std::uint64_t bytes = 8 << 20;
    auto fd = create_segment("test", bytes);
    BOOST_TEST(::pwrite(fd->get(), "x", 1, 1 << 20) == 1);
    BOOST_TEST(held_bytes(fd->get()) == 4096u);
    Prefaulter prefaulter(0);
    auto cancelled = std::make_shared<std::atomic<bool>>(true);
    prefaulter.add(UniqueFd(::dup(fd->get())), bytes, cancelled,
                   [](Prefaulter::Report) { BOOST_ERROR("a cancelled task reported"); });
    BOOST_REQUIRE(comes_to(prefaulter));
    BOOST_TEST(held_bytes(fd->get()) == 4096u);
    prefaulter.discard(UniqueFd(::dup(fd->get())), bytes);
    BOOST_REQUIRE(comes_to(prefaulter));
    BOOST_TEST(held_bytes(fd->get()) == 0u);
}

BOOST_AUTO_TEST_CASE(what_can_not_be_discarded_harms_nobody) {
    Prefaulter prefaulter(0);
    prefaulter.discard(UniqueFd(), 4096);
    prefaulter.discard(UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC)), 4096);
    auto fd = create_segment("test", 4096);
    BOOST_TEST(::pwrite(fd->get(), "x", 1, 0) == 1);
    prefaulter.discard(UniqueFd(::dup(fd->get())), 0);
    BOOST_TEST(comes_to(prefaulter));
    BOOST_TEST(held_bytes(fd->get()) == 4096u);
}

BOOST_AUTO_TEST_CASE(stopping_does_not_wait_for_the_rest) {
    auto prefaulter = std::make_unique<Prefaulter>(0);
    for (int i = 0; i < 50; ++i) {
        auto fd = create_segment("test", max_segment_bytes);
        auto cancelled = std::make_shared<std::atomic<bool>>(true);
        prefaulter->add(std::move(*fd), max_segment_bytes, cancelled,
                        [](Prefaulter::Report) { BOOST_ERROR("a cancelled task reported"); });
    }
    auto begin = std::chrono::steady_clock::now();
    prefaulter.reset();
    BOOST_TEST((std::chrono::steady_clock::now() - begin < 5s));
}

BOOST_AUTO_TEST_SUITE_END()
