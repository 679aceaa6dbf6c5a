// SPDX-License-Identifier: Apache-2.0
// What moving a checkpoint from one node's memory to another's reaches, beside plain TCP with as many
// connections between the same memories, in one run and in turn. Both ends are on this machine, so it says
// what the protocol costs, not what a network does. All memory has its pages before anything is timed.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <future>
#include <random>
#include <thread>

#include "base/units.h"
#include "bench/loopback.h"
#include "ckpt/block_kernel.h"
#include "ckpt/checksum.h"
#include "ckpt/mapping.h"
#include "mover/object_watch.h"
#include "transport/bulk_sender.h"
#include "transport/bulk_server.h"
#include "transport/bulk_ucx.h"

using namespace dlrover;
using namespace dlrover::transport;
using namespace std::chrono_literals;

namespace {

using Seconds = std::chrono::duration<double>;

struct Settings {
    std::uint64_t bytes = std::uint64_t{1} << 30;
    std::uint16_t streams = 2;
    int rounds = 5;
};

struct Memories {
    ckpt::Mapping source, target;
    std::uint64_t checksum = 0;

    std::span<const std::byte> from() const { return {source.base(), source.bytes()}; }
    std::span<std::byte> to() const { return {target.base(), target.bytes()}; }
    Status check() const {
        if (ckpt::chunk_checksum(to()) == checksum) return {};
        return Status(Code::corrupt, "other bytes arrived than were sent");
    }
};

Result<Memories> make_memories(std::uint64_t bytes) {
    auto source = ckpt::Mapping::anonymous(bytes), target = ckpt::Mapping::anonymous(bytes);
    if (!source) return source.take_status();
    if (!target) return target.take_status();
    std::mt19937_64 random(1);
    for (std::uint64_t at = 0; at + 8 <= bytes; at += 8) {
        std::uint64_t word = random();
        std::memcpy(source->base() + at, &word, 8);
    }
    std::memset(target->base(), 1, bytes);
    Memories memories{std::move(*source), std::move(*target), 0};
    memories.checksum = ckpt::chunk_checksum(memories.from());
    return memories;
}

/// Each connection carries its share, in pieces of a block.
Status move_raw(const Settings &settings, const Memories &memories) {
    std::vector<std::future<Status>> ends;
    std::uint64_t share = settings.bytes / settings.streams;
    for (std::uint16_t i = 0; i < settings.streams; ++i) {
        auto pair = bench::connected_pair();
        if (!pair) return pair.take_status();
        std::uint64_t at = i * share, bytes = i + 1 == settings.streams ? settings.bytes - at : share;
        ends.push_back(
            std::async(std::launch::async, [fd = std::move(pair->first), at, bytes, &memories]() mutable {
                BulkSocket socket(std::move(fd), {}, {10s, std::nullopt});
                for (std::uint64_t done = 0; done < bytes; done += bulk_block_bytes) {
                    auto *data = const_cast<std::byte *>(memories.source.base() + at + done);
                    iovec part{data, std::min(bulk_block_bytes, bytes - done)};
                    DLROVER_TRY(socket.write(std::span<const iovec>(&part, 1)));
                }
                return Status();
            }));
        ends.push_back(
            std::async(std::launch::async, [fd = std::move(pair->second), at, bytes, &memories]() mutable {
                BulkSocket socket(std::move(fd), {}, {10s, std::nullopt});
                for (std::uint64_t done = 0; done < bytes; done += bulk_block_bytes)
                    DLROVER_TRY(socket.read(
                        memories.to().subspan(at + done, std::min(bulk_block_bytes, bytes - done))));
                return Status();
            }));
    }
    Status first;
    for (auto &end : ends)
        if (Status status = end.get(); first.ok()) first = std::move(status);
    return first;
}

/// `compared`: as a mover does, with the whole's checksum, while it comes; else each block with its own.
Status move_ours(const Settings &settings, const Memories &memories, BulkMethod method, bool compared) {
    BulkServerOptions options;
    options.listen.address = "127.0.0.1";
    options.hash = ckpt::block_kernel().hash;
    options.methods = static_cast<BulkMethods>(method);
    auto server = BulkServer::start(options);
    if (!server) return server.take_status();
    BulkTarget target;
    target.transfer = 1;
    target.memory = memories.to();
    mover::ObjectWatch watch(memories.to(),
                             {{}, {settings.bytes, settings.bytes, 0, memories.checksum}, true});
    if (compared) {
        target.compared = true;
        target.arrived = [&](std::uint16_t stream, std::uint64_t offset, std::uint64_t bytes) {
            watch.arrived(stream, offset, bytes);
        };
        target.verify = [&] { return watch.verify(); };
    }
    DLROVER_TRY((*server)->expect(std::move(target)));
    auto to = parse_address("127.0.0.1");
    if (!to) return to.take_status();
    BulkJob job;
    job.to = *to;
    job.to.set_port((*server)->port());
    job.transfer = 1;
    job.memory = memories.from();
    job.hash = ckpt::block_kernel().hash;
    job.method = method;
    job.streams = settings.streams;
    return bulk_send(job);
}

Status copy(const Memories &memories) {
    std::memcpy(memories.target.base(), memories.source.base(), memories.source.bytes());
    return {};
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

constexpr double goal_ratio = 0.90;  ///< of plain TCP

struct Way {
    const char *name;
    std::function<Status()> work;
    std::vector<double> seconds;
    bool has_goal = false;
};

/// The 95 % interval of the median, whatever the distribution: between order statistics.
std::pair<double, double> interval(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    auto n = static_cast<double>(values.size());
    auto low = static_cast<std::size_t>(std::max(0.0, std::floor((n - 1.96 * std::sqrt(n)) / 2)));
    return {values[low], values[values.size() - 1 - low]};
}

/// False: ours misses the goal by more than the interval.
bool report(const Settings &settings, const std::vector<Way> &ways) {
    std::printf("%s, %u connections, %d rounds in turn, medians; sender and receiver on this machine\n",
                format_size_bytes(settings.bytes).c_str(), settings.streams, settings.rounds);
    bool good = true;
    for (const Way &way : ways) {
        std::vector<double> ratios;
        for (std::size_t i = 0; i < way.seconds.size(); ++i)
            ratios.push_back(ways[1].seconds[i] / way.seconds[i]);
        auto [low, high] = interval(ratios);
        std::printf("%-36s %6.2f GiB/s   %.2f [%.2f, %.2f] of plain TCP%s\n", way.name,
                    static_cast<double>(settings.bytes) / median(way.seconds) / (1u << 30), median(ratios),
                    low, high, way.has_goal ? "   goal >= 0.90" : "");
        good = good && (!way.has_goal || high >= goal_ratio);
    }
    return good;
}

/// Whether the goal is met.
Result<bool> run(const Settings &settings) {
    auto memories = make_memories(settings.bytes);
    if (!memories) return memories.take_status();
    auto ours = [&](BulkMethod method, bool compared) {
        return [&settings, &m = *memories, method, compared] {
            return move_ours(settings, m, method, compared);
        };
    };
    std::vector<Way> ways = {{"memcpy", [&] { return copy(*memories); }, {}},
                             {"plain TCP", [&] { return move_raw(settings, *memories); }, {}},
                             {"mover, TCP, each block checked", ours(BulkMethod::tcp, false), {}},
                             {"mover, TCP, all compared as it comes", ours(BulkMethod::tcp, true), {}, true}};
    ucx_allow(UcxNetworks::any);
    if (ucx_usable().ok()) ways.push_back({"mover, UCX put, all compared", ours(BulkMethod::ucx, true), {}});
    for (int round = 0; round <= settings.rounds; ++round)
        for (Way &way : ways) {
            std::memset(memories->target.base(), 0, settings.bytes);
            auto start = std::chrono::steady_clock::now();
            DLROVER_TRY(way.work());
            double seconds = Seconds(std::chrono::steady_clock::now() - start).count();
            DLROVER_TRY(memories->check());
            if (round > 0) way.seconds.push_back(seconds);  // the first one warms up
        }
    return report(settings, ways);
}

Result<Settings> parse(int argc, char **argv) {
    Settings settings;
    if (argc > 4) return Status(Code::invalid_argument, "usage: replication [SIZE [CONNECTIONS [ROUNDS]]]");
    if (argc > 1) {
        auto bytes = parse_size_bytes(argv[1]);
        if (!bytes) return bytes.take_status();
        settings.bytes = std::max(*bytes, bulk_block_bytes);
    }
    for (int i = 2; i < argc; ++i) {
        auto number = parse_uint(argv[i], 1, i == 2 ? max_bulk_streams : 1000);
        if (!number) return number.take_status();
        if (i == 2) settings.streams = static_cast<std::uint16_t>(*number);
        if (i == 3) settings.rounds = static_cast<int>(*number);
    }
    return settings;
}

}  // namespace

int main(int argc, char **argv) {
    Status status = init_crypto();
    ucx_tune();
    bool good = false;
    auto settings = parse(argc, argv);
    if (status.ok()) status = settings.take_status();
    if (status.ok()) {
        auto met = run(*settings);
        status = met.take_status();
        good = status.ok() && *met;
    }
    if (!status.ok()) std::fprintf(stderr, "replication: %s\n", status.message().c_str());
    return good ? 0 : 1;
}
