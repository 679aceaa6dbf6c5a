// SPDX-License-Identifier: Apache-2.0
#include "ckpt/segment.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <boost/test/unit_test.hpp>
#include <future>

using namespace dlrover;
using namespace dlrover::ckpt;
using namespace std::chrono_literals;

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
    struct stat st {};
    ::fstat(fd->get(), &st);
    BOOST_TEST(static_cast<std::uint64_t>(st.st_blocks) * 512 == bytes);
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
