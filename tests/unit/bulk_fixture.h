// SPDX-License-Identifier: Apache-2.0
// A BulkServer of this process, what it expects and jobs for it: of the tests over TCP and by UCX.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <random>
#include <span>
#include <thread>
#include <vector>

#include "transport/bulk_sender.h"
#include "transport/bulk_server.h"

namespace dlrover::test {

using namespace std::chrono_literals;
using transport::bulk_block_bytes;
using transport::BulkHave;
using transport::BulkJob;
using transport::BulkServer;
using transport::BulkServerOptions;
using transport::BulkSpared;
using transport::BulkTarget;
using transport::Key;

using Clock = std::chrono::steady_clock;
inline constexpr std::uint64_t mib = 1u << 20;
inline constexpr auto long_time = 60s;  ///< for what ends by itself on any machine

inline Key key_of(std::uint8_t value) {
    std::array<std::uint8_t, transport::key_bytes> bytes;
    bytes.fill(value);
    return Key(bytes);
}

inline std::vector<std::byte> random_bytes(std::uint64_t count) {
    std::vector<std::byte> bytes(count);
    std::mt19937_64 random(count);
    for (std::byte &b : bytes) b = static_cast<std::byte>(random());
    return bytes;
}

/// Until a part of it is on its way.
inline void wait_for_start(const std::atomic<std::uint64_t> &progress) {
    for (auto until = Clock::now() + long_time; progress < 2 * mib; std::this_thread::sleep_for(1ms))
        BOOST_REQUIRE((Clock::now() < until));
}

/// A server, and what is sent to it from where and to where.
struct Fixture {
    Fixture() { BOOST_REQUIRE(transport::init_crypto().ok()); }

    std::unique_ptr<BulkServer> server = start();
    std::vector<std::byte> source, memory;

    static std::unique_ptr<BulkServer> start(BulkServerOptions options = {}) {
        BOOST_REQUIRE(transport::init_crypto().ok());
        options.listen.address = "127.0.0.1";
        auto server = BulkServer::start(options);
        BOOST_REQUIRE_MESSAGE(server.ok(), server.status().message());
        return std::move(*server);
    }

    /// What `done` is told comes out of the future.
    std::future<Status> expect(std::uint64_t bytes, BulkTarget target = {}) {
        source = random_bytes(bytes);
        memory.assign(bytes, std::byte{0});
        target.transfer = 7;
        target.key = key_of(1);
        target.memory = memory;
        auto told = std::make_shared<std::promise<Status>>();
        auto future = told->get_future();
        target.done = [told](const Status &status) {
            told->set_value(status.ok() ? Status() : Status(status.code(), status.message()));
        };
        BOOST_REQUIRE(server->expect(std::move(target)).ok());
        return future;
    }

    /// A target whose memory can get these blocks without the sender.
    BulkTarget with_blocks(std::vector<std::uint64_t> blocks) {
        BulkTarget target;
        for (std::uint64_t block : blocks) target.haves.push_back({block, bulk_block_bytes, 5});
        target.fill = [this](std::span<const BulkSpared> spared) {
            for (const BulkSpared &run : spared) {
                std::uint64_t at = run.first * bulk_block_bytes;
                std::uint64_t bytes = std::min(run.count * bulk_block_bytes, source.size() - at);
                std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(at), bytes,
                            memory.begin() + static_cast<std::ptrdiff_t>(at));
            }
            return Status();
        };
        return target;
    }
    /// Leaves those out, where the other side has named any.
    BulkJob sparing(std::vector<BulkSpared> spared, std::uint16_t streams = 2) {
        BulkJob job = this->job(streams);
        asked = 0;
        job.spare = [this, spared](std::span<const BulkHave> haves) {
            ++asked;
            return haves.empty() ? std::vector<BulkSpared>() : spared;
        };
        return job;
    }
    std::atomic<int> asked{0};

    /// At so many bytes a second; it is under way when this returns.
    std::future<Status> send_slowly(BulkJob job, std::uint64_t rate) {
        job.rate = std::make_shared<transport::RateLimit>(rate);
        progress = 0;
        job.progress = &progress;
        auto sent =
            std::async(std::launch::async, [job = std::move(job)] { return transport::bulk_send(job); });
        wait_for_start(progress);
        return sent;
    }
    std::atomic<std::uint64_t> progress{0};

    BulkJob job(std::uint16_t streams = 2) const {
        BulkJob job;
        job.to = *transport::parse_address("127.0.0.1");
        job.to.set_port(server->port());
        job.transfer = 7;
        job.key = key_of(1);
        job.memory = source;
        job.streams = streams;
        return job;
    }
};

inline Status outcome(std::future<Status> &told) {
    BOOST_REQUIRE((told.wait_for(long_time) == std::future_status::ready));
    return told.get();
}

}  // namespace dlrover::test
