// SPDX-License-Identifier: Apache-2.0
// Transfers by UCX within this machine, where UCX can be used.
#include <poll.h>
#include <stdlib.h>

#include <boost/test/unit_test.hpp>
#include <future>

#include "tests/unit/bulk_fixture.h"
#include "transport/bulk_sender.h"
#include "transport/bulk_server.h"
#include "transport/bulk_ucx.h"

using namespace dlrover;
using namespace dlrover::test;
using namespace dlrover::transport;
using namespace std::chrono_literals;

namespace {

struct UcxFixture : Fixture {
    UcxFixture() {
        BulkServerOptions options;
        options.methods = static_cast<BulkMethods>(BulkMethod::ucx);
        server = start(options);
    }
    BulkJob job() const {
        BulkJob job = Fixture::job();
        job.method = BulkMethod::ucx;
        return job;
    }
};

struct HasUcx {
    boost::test_tools::assertion_result operator()(boost::unit_test::test_unit_id) const {
        ucx_tune();
        ::setenv("UCX_TLS", "tcp", 0);  // as between nodes: through memory the other side need not be awake
        ucx_allow(UcxNetworks::any);
        boost::test_tools::assertion_result result(ucx_usable().ok());
        result.message() << "UCX: " << ucx_usable().message();
        return result;
    }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(bulk_by_ucx, UcxFixture, *boost::unit_test::precondition(HasUcx()))

BOOST_AUTO_TEST_CASE(all_bytes_arrive) {
    for (std::uint64_t bytes : {std::uint64_t{1}, mib + 1, 33 * mib + 77}) {
        BulkTarget target;
        target.verify = [&] { return memory == source ? Status() : Status(Code::corrupt, "not all there"); };
        auto told = expect(bytes, std::move(target));
        Status status = bulk_send(job());
        BOOST_TEST_CONTEXT(bytes << " bytes: " << status.message()) {
            BOOST_TEST(status.ok());
            BOOST_TEST(outcome(told).ok());
            BOOST_TEST((memory == source));
        }
    }
}

BOOST_AUTO_TEST_CASE(another_key_or_another_way_is_refused) {
    auto told = expect(mib);
    BulkJob wrong = job();
    wrong.key = key_of(2);
    BOOST_TEST((bulk_send(wrong).code() == Code::permission_denied));
    wrong = job();
    wrong.method = BulkMethod::tcp;
    BOOST_TEST((bulk_send(wrong).code() == Code::unavailable));
    BOOST_TEST(bulk_send(job()).ok());
}

BOOST_AUTO_TEST_CASE(what_is_here_already_is_not_put) {
    auto told = expect(5 * mib + 1, with_blocks({1, 2, 3}));
    std::atomic<std::uint64_t> progress{0};
    BulkJob job = sparing({{1, 3}});
    job.method = BulkMethod::ucx;
    job.progress = &progress;
    Status status = bulk_send(job);
    BOOST_TEST(status.ok(), status.message());
    BOOST_TEST(outcome(told).ok());
    BOOST_TEST((memory == source));
    BOOST_TEST(progress == 5 * mib + 1 - 3 * bulk_block_bytes);
}

BOOST_AUTO_TEST_CASE(called_off_in_the_middle) {
    auto told = expect(64 * mib);
    BulkJob job = this->job();
    job.cancellation = *Cancellation::create();
    auto sent = send_slowly(job, 32 * mib);
    job.cancellation->cancel();
    BOOST_TEST((sent.get().code() == Code::unavailable));
    BOOST_TEST((outcome(told).code() == Code::unavailable));
}

BOOST_AUTO_TEST_CASE(a_forgotten_transfer_ends_the_sender) {
    auto told = expect(64 * mib);
    auto sent = send_slowly(job(), 32 * mib);
    server->forget(7);
    std::vector<std::byte> as_it_was = memory;
    BOOST_TEST(!sent.get().ok());
    BOOST_TEST((memory == as_it_was));
}

/// As a mover that is stopped, or whose node is: nobody drives the receiving side.
BOOST_AUTO_TEST_CASE(who_stands_still_is_given_up) {
    memory.resize(64 * mib);
    source = random_bytes(64 * mib);
    auto sink = UcxSink::open(memory);
    BOOST_REQUIRE_MESSAGE(sink.ok(), sink.status().message());
    auto begun = Clock::now();
    {
        auto put = UcxSource::open((*sink)->place(), {}, {300ms, begun + long_time});
        BOOST_REQUIRE_MESSAGE(put.ok(), put.status().message());
        Status status;
        for (std::uint64_t at = 0; status.ok() && at < source.size(); at += mib)
            status = (*put)->put(at, std::span<const std::byte>(source).subspan(at, mib));
        if (status.ok()) status = (*put)->flush();
        BOOST_TEST((status.code() == Code::timeout), status.message());
    }
    BOOST_TEST((Clock::now() - begun >= 300ms));
    BOOST_TEST((Clock::now() - begun < long_time),
               "before all of its time is over, and its end waits for nobody");
}

BOOST_AUTO_TEST_CASE(a_sink_waits_no_longer_than_told) {
    memory.resize(mib);
    auto sink = UcxSink::open(memory);
    BOOST_REQUIRE_MESSAGE(sink.ok(), sink.status().message());
    auto listener = listen_on({.address = "127.0.0.1"});  // nobody comes
    BOOST_REQUIRE(listener.ok());
    auto begun = Clock::now();
    Status status = (*sink)->drive({listener->get(), POLLIN, 0}, {}, begun + 200ms);
    BOOST_TEST((status.code() == Code::timeout), status.message());
    BOOST_TEST((Clock::now() - begun >= 200ms));
}

BOOST_AUTO_TEST_SUITE_END()
