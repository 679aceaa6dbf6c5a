// SPDX-License-Identifier: Apache-2.0
// Writes one rank's object to storage, as a first checkpoint and as one of the same tensors as before, and
// the same bytes raw (O_DIRECT, one fsync), in turn; prints the ratio and its 95 % interval.
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <random>
#include <vector>

#include "base/units.h"
#include "ckpt/checksum.h"
#include "ckpt/storage_index.h"
#include "ckpt/storage_io.h"
#include "ckpt/storage_writer.h"

using namespace dlrover;
using namespace dlrover::ckpt;

namespace {

constexpr std::uint64_t kept_bytes = 1u << 30;
constexpr double goal_ratio = 0.90;  ///< of raw
using Seconds = std::chrono::duration<double>;

struct Settings {
    std::string folder;
    std::uint64_t bytes = std::uint64_t{1} << 30, tensors = 64;
    int rounds = 5;
};

struct Object {
    std::span<std::byte> data;
    std::vector<std::uint8_t> table;
};

/// Random bytes in tensors of one size; each 64 bytes away from a page, as tensors in an arena are.
Result<Object> make_object(const Settings &settings) {
    constexpr std::uint64_t gap = 4096 + 64;
    std::uint64_t each = settings.bytes / settings.tensors / 64 * 64, total = (each + gap) * settings.tensors;
    void *memory =
        ::mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) return Status::from_errno("memory for the object");
    Object object{{static_cast<std::byte *>(memory), total}, {}};
    std::mt19937_64 random(1);
    for (std::uint64_t at = 0; at + 8 <= total; at += 8) {
        std::uint64_t word = random();
        std::memcpy(object.data.data() + at, &word, 8);
    }
    ObjectTableWriter writer({TrainStep(1), Rank(0), 1, {Term(1), 1}, "bench"});
    for (std::uint64_t i = 0, at = 64; i < settings.tensors; ++i, at += each + gap / 64 * 64) {
        std::string name = "tensor." + std::to_string(i);
        std::uint64_t sum = chunk_checksum(object.data.subspan(at, each)), zero = 0;
        DLROVER_TRY(writer.add({name, DType::UInt8, {&each, 1}, {&zero, 1}, {&each, 1}, 0, at, each, sum}));
    }
    auto table = writer.finish();
    if (!table) return table.take_status();
    object.table = std::move(*table);
    return object;
}

Status write_raw(const Settings &settings, const Object &object) {
    std::string path = settings.folder + "/raw";
    UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0600));
    if (!fd) return file_error("open of", path);
    std::uint64_t bytes = settings.bytes / 4096 * 4096;
    if (::fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) != 0 && errno != EOPNOTSUPP)
        return file_error("reserving room for", path);
    DLROVER_TRY(write_at(fd.get(), object.data.data(), bytes, 0, path));
    return ::fsync(fd.get()) == 0 ? Status() : file_error("fsync of", path);
}

/// Samples of one way.
struct Times {
    std::vector<double> wall, cpu;  ///< seconds; of all threads
};

double cpu_seconds() {
    timespec now;
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

Status time_once(const std::function<Status()> &work, Times &times) {
    auto start = std::chrono::steady_clock::now();
    double cpu = cpu_seconds();
    DLROVER_TRY(work());
    times.cpu.push_back(cpu_seconds() - cpu);
    times.wall.push_back(Seconds(std::chrono::steady_clock::now() - start).count());
    return {};
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

struct Interval {
    double low, high;
};

/// The 95 % interval of the median of the rounds' ratios, whatever the distribution.
Interval ratio_to(const Times &raw, const Times &ours) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < ours.wall.size(); ++i) ratios.push_back(raw.wall[i] / ours.wall[i]);
    std::sort(ratios.begin(), ratios.end());
    auto n = static_cast<double>(ratios.size());
    auto low = static_cast<std::size_t>(std::max(0.0, std::floor((n - 1.96 * std::sqrt(n)) / 2)));
    return {ratios[low], ratios[ratios.size() - 1 - low]};
}

/// Of an index for the one rank's file, which is not there afterwards.
Status run_index(const Settings &settings, const SealedObject &sealed) {
    DLROVER_TRY(write_storage_file(settings.folder, sealed).take_status());
    StorageFrames kept(kept_bytes);
    Times again, first;
    for (int round = 0; round < settings.rounds; ++round)
        for (auto *times : {&again, &first}) {
            auto write = [&] {
                auto file = StorageFile::open(settings.folder + "/rank-0.h5");
                if (!file) return file.take_status();
                StorageFrames none(0);
                StorageFrames &frames = times == &again ? kept : none;
                return write_storage_index(settings.folder, {&*file, 1}, frames).take_status();
            };
            DLROVER_TRY(time_once(write, *times));
        }
    for (auto *times : {&again, &first})
        std::printf("%-28s %7.1f ms, CPU %6.1f ms\n", times == &again ? "index, again" : "index, first time",
                    1e3 * median(times->wall), 1e3 * median(times->cpu));
    for (const char *name : {"/rank-0.h5", "/index.h5"}) std::filesystem::remove(settings.folder + name);
    return {};
}

/// False: the goal is missed, and by more than the noise.
Result<bool> run(const Settings &settings) {
    auto object = make_object(settings);
    if (!object) return object.take_status();
    SealedObject sealed{object->data, object->table, {}};
    struct Way {
        const char *name;
        std::function<Status()> work;
        Times times;
        bool has_goal = false;
    };
    auto ours = [&](StorageWriteOptions options) {
        return [&, options] { return write_storage_file(settings.folder, sealed, options).take_status(); };
    };
    StorageFrames frames(kept_bytes);
    Way ways[] = {{"raw O_DIRECT + fsync", [&] { return write_raw(settings, *object); }, {}},
                  {"our writer, again", ours({.frames = &frames}), {}, true},
                  {"  without checking memory", ours({.check_source = false, .frames = &frames}), {}},
                  {"  through the page cache", ours({.direct = false, .frames = &frames}), {}},
                  {"our writer, first time", ours({}), {}, true}};
    for (int round = 0; round < settings.rounds; ++round)
        for (Way &way : ways) {
            DLROVER_TRY(time_once(way.work, way.times));
            std::error_code ignored;
            for (const char *name : {"/raw", "/rank-0.h5"})
                std::filesystem::remove(settings.folder + name, ignored);
        }
    double raw = median(ways[0].times.wall);
    std::printf("%s in %llu tensors, %d rounds in turn, medians\n", format_size_bytes(settings.bytes).c_str(),
                static_cast<unsigned long long>(settings.tensors), settings.rounds);
    bool good = true;
    for (const Way &way : ways) {
        Interval ratio = ratio_to(ways[0].times, way.times);
        double wall = median(way.times.wall);
        std::printf("%-28s %7.1f ms, CPU %6.1f ms  %6.2f GiB/s   %.2f [%.2f, %.2f] of raw", way.name,
                    1e3 * wall, 1e3 * median(way.times.cpu),
                    static_cast<double>(settings.bytes) / wall / (1u << 30), raw / wall, ratio.low,
                    ratio.high);
        if (way.has_goal) std::printf("   goal >= %.2f", goal_ratio);
        std::printf("\n");
        good = good && (!way.has_goal || ratio.high >= goal_ratio);
    }
    DLROVER_TRY(run_index(settings, sealed));
    return good;
}

Result<Settings> parse(int argc, char **argv) {
    Settings settings;
    if (argc < 2 || argc > 5)
        return Status(Code::invalid_argument, "usage: storage_write FOLDER [SIZE [TENSORS [ROUNDS]]]");
    settings.folder = argv[1];
    if (argc > 2) {
        auto bytes = parse_size_bytes(argv[2]);
        if (!bytes) return bytes.take_status();
        settings.bytes = *bytes;
    }
    for (int i = 3; i < argc; ++i) {
        auto number = parse_uint(argv[i], 1, i == 3 ? 100000 : 1000);
        if (!number) return number.take_status();
        if (i == 3) settings.tensors = *number;
        if (i == 4) settings.rounds = static_cast<int>(*number);
    }
    if (settings.bytes / settings.tensors < 64 || settings.bytes < 4096)
        return Status(Code::invalid_argument, "tensors of less than 64 bytes, or less than 4 KiB of all");
    return settings;
}

}  // namespace

int main(int argc, char **argv) {
    auto settings = parse(argc, argv);
    auto good = settings.ok() ? run(*settings) : Result<bool>(settings.take_status());
    if (!good.ok()) std::fprintf(stderr, "storage_write: %s\n", good.status().message().c_str());
    return good.ok() && *good ? 0 : 1;
}
