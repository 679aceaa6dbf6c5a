// SPDX-License-Identifier: Apache-2.0
// What libdlrover does with a checkpoint's bytes on the CPU, beside the best that this memory does: the same
// bytes copied past the cache, as STREAM's "copy" is measured, by as many threads, in the same run and in
// turn. All memory has its pages before anything is timed.
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "base/units.h"
#include "ckpt/checksum.h"
#include "ckpt/mapping.h"
#include "ckpt/segment.h"
#include "lib/protect.h"

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

using namespace dlrover;
using namespace dlrover::lib;

namespace {

constexpr double goal_ratio = 0.90, goal_view_ms = 10.0;
constexpr std::uint64_t table_room_bytes = 16u << 20;

// ---- the peer ----

#if defined(__x86_64__)
__attribute__((target("avx2"))) void stream_avx2(std::byte *to, const std::byte *from, std::uint64_t bytes) {
    for (std::uint64_t i = 0; i < bytes; i += 128)
        for (std::uint64_t at = i; at < i + 128; at += 32)
            _mm256_stream_si256(reinterpret_cast<__m256i *>(to + at),
                                _mm256_load_si256(reinterpret_cast<const __m256i *>(from + at)));
    _mm_sfence();
}

void stream_sse2(std::byte *to, const std::byte *from, std::uint64_t bytes) {
    for (std::uint64_t i = 0; i < bytes; i += 64)
        for (std::uint64_t at = i; at < i + 64; at += 16)
            _mm_stream_si128(reinterpret_cast<__m128i *>(to + at),
                             _mm_load_si128(reinterpret_cast<const __m128i *>(from + at)));
    _mm_sfence();
}
#endif

struct StreamCopy {
    const char *name;
    void (*copy)(std::byte *to, const std::byte *from, std::uint64_t bytes);  ///< multiples of 128
};

StreamCopy best_stream() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) return {"AVX2 stores past the cache", stream_avx2};
    return {"SSE2 stores past the cache", stream_sse2};
#else
    return {"memcpy",
            [](std::byte *to, const std::byte *from, std::uint64_t n) { std::memcpy(to, from, n); }};
#endif
}

/// Threads that stand ready, so that the peer does not pay for starting them (we do).
class Team {
  public:
    explicit Team(unsigned threads) : threads_(threads), gate_(threads) {
        for (unsigned i = 1; i < threads; ++i) helpers_.emplace_back([this, i] { serve(i); });
    }
    ~Team() {
        stopping_ = true;
        gate_.arrive_and_wait();
        for (auto &helper : helpers_) helper.join();
    }
    Team(const Team &) = delete;
    Team &operator=(const Team &) = delete;

    /// Each thread its own share, as with a static schedule.
    void stream(std::byte *to, const std::byte *from, std::uint64_t bytes) {
        task_ = {to, from, bytes};
        gate_.arrive_and_wait();
        copy_share(0);
        gate_.arrive_and_wait();
    }

  private:
    struct Task {
        std::byte *to;
        const std::byte *from;
        std::uint64_t bytes;
    };
    void serve(unsigned index) {
        for (;;) {
            gate_.arrive_and_wait();
            if (stopping_) return;
            copy_share(index);
            gate_.arrive_and_wait();
        }
    }
    void copy_share(unsigned index) {
        std::uint64_t share = task_.bytes / threads_ / 4096 * 4096, at = share * index;
        std::uint64_t n = index + 1 == threads_ ? task_.bytes - at : share;
        peer_.copy(task_.to + at, task_.from + at, n / 128 * 128);
    }

    const StreamCopy peer_ = best_stream();
    const unsigned threads_;
    std::barrier<> gate_;
    bool stopping_ = false;
    Task task_{};
    std::vector<std::thread> helpers_;
};

// ---- what is copied ----

/// A program's tensors, registered to be saved and filled again, and a slot of the kind that the daemon hands
/// out. Its peer copies between the same memories: where pages lie makes as much of a difference.
struct Bench {
    ckpt::Mapping program;
    ckpt::SegmentRange slot;
    std::span<std::byte> data;
    ProtectedMemory tensors;
};

Result<ckpt::SegmentRange> make_slot(std::uint64_t bytes) {
    std::vector<ckpt::SegmentGrant> segments;
    for (std::uint64_t left = bytes, id = 1; left != 0; ++id) {
        std::uint64_t n = std::min(left, ckpt::max_segment_bytes);
        auto fd = ckpt::create_segment("segment", n);
        if (!fd) return fd.take_status();
        segments.push_back({id, n, std::move(*fd)});
        left -= n;
    }
    return ckpt::SegmentRange::map(std::move(segments), ckpt::Access::read_write);  // populates
}

Status protect_tensors(Bench &bench, std::uint64_t count, std::uint64_t each) {
    for (std::uint64_t i = 0; i < count; ++i) {
        ProtectedPiece piece;
        piece.name = "model.layers." + std::to_string(i) + ".attention.weight";
        piece.dtype = ckpt::DType::Float32;
        piece.global_shape = piece.local_shape = {each / 4};
        piece.global_offset = {0};
        piece.data = bench.data.data() + i * each;
        DLROVER_TRY(bench.tensors.protect_array(static_cast<int>(i), std::move(piece)));
    }
    return {};
}

Result<Bench> make_bench(std::uint64_t count, std::uint64_t each) {
    std::uint64_t slot_bytes = (count * each + table_room_bytes + 4095) / 4096 * 4096;
    auto program = ckpt::Mapping::anonymous(count * each);
    if (!program) return program.take_status();
    auto slot = make_slot(slot_bytes);
    if (!slot) return slot.take_status();
    Bench bench{std::move(*program), std::move(*slot), {}, {}};
    bench.data = {bench.program.base(), count * each};
    std::mt19937_64 random(1);
    for (std::uint64_t at = 0; at < bench.data.size(); at += 8) {
        std::uint64_t word = random();
        std::memcpy(bench.data.data() + at, &word, 8);
    }
    DLROVER_TRY(protect_tensors(bench, count, each));
    return bench;
}

Result<ObjectLayout> save(Bench &bench, unsigned threads) {
    ObjectWriter writer({bench.slot.base(), bench.slot.bytes(), TrainStep(1), SlotIndex(0)},
                        {TrainStep(1), Rank(0), 1, {Term(1), 1}, "bench"}, threads);
    auto sources = bench.tensors.sources();
    if (!sources) return sources.take_status();
    DLROVER_TRY(writer.add(*sources));
    return writer.finish();
}

Result<ObjectReader> open(const Bench &bench, const ObjectLayout &layout, bool verified, unsigned threads) {
    ObjectSource source{bench.slot.base(), bench.slot.bytes(), layout, verified, nullptr};
    return ObjectReader::open(source, {0, 1, "bench"}, threads);
}

/// What a program does to find its tensors in place; the sum keeps the loop.
Status walk_views(const Bench &bench, const ObjectLayout &layout, bool verified, unsigned threads) {
    auto reader = open(bench, layout, verified, threads);
    if (!reader) return reader.take_status();
    std::uint64_t bytes = 0;
    for (std::uint64_t i = 0; i < reader->count(); ++i) {
        if (reader->data(i) != nullptr) bytes += reader->chunk(i).bytes;
    }
    return bytes == bench.data.size() ? Status() : Status(Code::internal, "views are missing");
}

/// What comes back is what was saved, also after the program's memory was overwritten.
Status prove(Bench &bench, unsigned threads) {
    std::uint64_t before = ckpt::chunk_checksum(bench.data);
    auto layout = save(bench, threads);
    if (!layout) return layout.take_status();
    std::memset(bench.data.data(), 0, bench.data.size());
    auto reader = open(bench, *layout, false, threads);
    if (!reader) return reader.take_status();
    DLROVER_TRY(bench.tensors.fill(*reader, threads));
    if (ckpt::chunk_checksum(bench.data) != before)
        return Status(Code::internal, "what was restored is not what was saved");
    return {};
}

// ---- timing ----

struct Way {
    const char *name;
    std::function<Status()> work;
    std::size_t beside = SIZE_MAX;  ///< index of the way that is its limit; none: shown in milliseconds
    bool has_goal = true;
    std::vector<double> seconds{}, processor_seconds{};
};

double processor_seconds() {
    timespec t{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

Status run_in_turn(std::vector<Way> &ways, int rounds) {
    for (int round = -1; round < rounds; ++round)  // the first one warms up
        for (std::size_t i = 0; i < ways.size(); ++i) {
            Way &way = ways[round % 2 == 0 ? i : ways.size() - 1 - i];
            auto begun = std::chrono::steady_clock::now();
            double processor = processor_seconds();
            DLROVER_TRY(way.work());
            double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
            if (round < 0) continue;
            way.seconds.push_back(took);
            way.processor_seconds.push_back(processor_seconds() - processor);
        }
    return {};
}

struct Median {
    double value, low, high;  ///< and its 95 % interval, whatever the distribution
};

Median median_of(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    auto n = static_cast<double>(values.size());
    auto low = static_cast<std::size_t>(std::max(0.0, std::floor((n - 1.96 * std::sqrt(n)) / 2)));
    return {values[values.size() / 2], values[low], values[values.size() - 1 - low]};
}

/// False: the goal is missed, and by more than the noise.
bool print(const Way &way, const std::vector<Way> &ways, double bytes) {
    Median time = median_of(way.seconds);
    std::printf("  %-34s %8.2f ms (%.2f)", way.name, time.value * 1e3,
                median_of(way.processor_seconds).value * 1e3);
    if (way.beside == SIZE_MAX) {
        if (way.has_goal) std::printf("   goal < %.0f ms", goal_view_ms);
        std::printf("\n");
        return !way.has_goal || time.low * 1e3 < goal_view_ms;
    }
    std::vector<double> ratios;
    for (std::size_t i = 0; i < way.seconds.size(); ++i)
        ratios.push_back(ways[way.beside].seconds[i] / way.seconds[i]);
    Median ratio = median_of(ratios);
    std::printf(" %7.2f GiB/s", bytes / time.value / (1u << 30));
    if (&way != &ways[way.beside])
        std::printf("   %.2f [%.2f, %.2f] of it", ratio.value, ratio.low, ratio.high);
    if (way.has_goal) std::printf("   goal >= %.2f", goal_ratio);
    std::printf("\n");
    return !way.has_goal || ratio.high >= goal_ratio;
}

constexpr std::uint64_t small_chunks = 10000;

struct Settings {
    std::uint64_t bytes = 512u << 20, small_bytes = 64u << 10;
    int rounds = 21;
};

Result<bool> measure(std::uint64_t count, std::uint64_t each, unsigned threads, int rounds) {
    auto made = make_bench(count, each);
    if (!made) return made.take_status();
    Bench &bench = *made;
    DLROVER_TRY(prove(bench, threads));
    auto layout = save(bench, threads);
    if (!layout) return layout.take_status();
    auto reader = open(bench, *layout, true, threads);
    if (!reader) return reader.take_status();
    Team team(threads);
    // The peer's copy leaves the object as it is: its chunks lie one behind the other, as the tensors do.
    auto done = [](auto work) { return [work] { return work(), Status(); }; };
    std::vector<Way> ways = {
        {"STREAM copy into a slot",
         done([&] { team.stream(bench.slot.base(), bench.data.data(), bench.data.size()); }), 0, false},
        {"save", [&] { return save(bench, threads).take_status(); }, 0},
        {"STREAM copy out of a slot",
         done([&] { team.stream(bench.data.data(), bench.slot.base(), bench.data.size()); }), 2, false},
        {"restore: the copy", [&] { return bench.tensors.fill(*reader, threads); }, 2},
        {"restore: checksums, then the copy",
         [&] {
             auto checked = open(bench, *layout, false, threads);
             return checked.ok() ? bench.tensors.fill(*checked, threads) : checked.take_status();
         },
         2, false},
        {"views of all chunks", [&] { return walk_views(bench, *layout, true, threads); }},
        {"views, every checksum compared", [&] { return walk_views(bench, *layout, false, threads); },
         SIZE_MAX, false},
    };
    DLROVER_TRY(run_in_turn(ways, rounds));
    std::printf("\n%s in %llu chunks of %s, %u thread%s\n", format_size_bytes(bench.data.size()).c_str(),
                static_cast<unsigned long long>(count), format_size_bytes(each).c_str(), threads,
                threads == 1 ? "" : "s");
    bool good = true;
    for (const Way &way : ways) good = print(way, ways, static_cast<double>(bench.data.size())) && good;
    return good;
}

// ---- the program ----

void describe_machine() {
    std::ifstream cpus("/proc/cpuinfo"), load("/proc/loadavg");
    std::string model = "?", line, first;
    while (std::getline(cpus, line))
        if (line.starts_with("model name")) model = line.substr(line.find(':') + 2);
    load >> first;
    utsname system{};
    ::uname(&system);
    auto memory = static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) *
                  static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    std::printf("machine: %s, %u cores, %s, Linux %s, load %s before\n", model.c_str(),
                std::thread::hardware_concurrency(), format_size_bytes(memory).c_str(), system.release,
                first.c_str());
    std::printf("versions: dlrover %s, compiler %s, blocks by %s\n", PACKAGE_VERSION, __VERSION__,
                ckpt::block_kernel().name);
}

Result<bool> run(const Settings &settings) {
    describe_machine();
    std::printf(
        "limit: STREAM copy by %s; %d rounds in turn, medians (and of processor time), 95 %% intervals of "
        "the ratios\n",
        best_stream().name, settings.rounds);
    bool good = true;
    for (unsigned threads : {1u, 2u})
        for (auto [count, each] : {std::pair<std::uint64_t, std::uint64_t>{8, settings.bytes / 8 / 128 * 128},
                                   std::pair{small_chunks, settings.small_bytes}}) {
            auto met = measure(count, each, threads, settings.rounds);
            if (!met) return met.take_status();
            good = good &&
                   (*met || count > 8);  // what small chunks cost beside their bytes is shown, not judged
        }
    return good;
}

Result<Settings> parse(int argc, char **argv) {
    Settings settings;
    if (argc > 4) return Status(Code::invalid_argument, "usage: ckpt_copy [SIZE [SMALL_SIZE [ROUNDS]]]");
    for (int i = 1; i < argc && i < 3; ++i) {
        auto bytes = parse_size_bytes(argv[i]);
        if (!bytes) return bytes.take_status();
        if (*bytes < 1024 || *bytes % 128 != 0)
            return Status(Code::invalid_argument, "sizes are multiples of 128 bytes, 1 KiB or more");
        (i == 1 ? settings.bytes : settings.small_bytes) = *bytes;
    }
    if (argc > 3) {
        auto rounds = parse_uint(argv[3], 5, 10000);
        if (!rounds) return rounds.take_status();
        settings.rounds = static_cast<int>(*rounds);
    }
    auto memory =
        static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
    double needed =
        3.0 * std::max(static_cast<double>(settings.bytes),
                       static_cast<double>(small_chunks) * static_cast<double>(settings.small_bytes));
    if (needed > memory)
        return Status(Code::invalid_argument,
                      "SIZE is of all 8 large chunks, SMALL_SIZE of each of 10,000: three times that is more "
                      "memory than there is");
    return settings;
}

}  // namespace

int main(int argc, char **argv) {
    auto settings = parse(argc, argv);
    auto good = settings.ok() ? run(*settings) : Result<bool>(settings.take_status());
    if (!good.ok()) std::fprintf(stderr, "ckpt_copy: %s\n", good.status().message().c_str());
    return good.ok() && *good ? 0 : 1;
}
