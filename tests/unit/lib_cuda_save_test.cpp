// SPDX-License-Identifier: Apache-2.0
// Saves from (fake) GPU memory through the C interface, on plain files and in a daemon's slots.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <thread>

#include "base/fault.h"
#include "ckpt/checksum.h"
#include "ckpt/mapping.h"
#include "fake_cuda.h"
#include "lib/save.h"
#include "lib_fake_daemon.h"
#include "lib_fixture.h"

using namespace dlrover::test;

namespace {

struct Files : Environment, FakeCuda {};
struct Slots : Environment, FakeCuda {
    FakeDaemon daemon;
    Slots() { manage(daemon.socket_path()); }
};

dlrover_chunk bytes_chunk(const char *name, std::uint64_t bytes) {
    dlrover_chunk chunk{};
    chunk.name = name;
    chunk.dtype = DLROVER_UINT8;
    chunk.ndim = 1;
    chunk.global_shape[0] = chunk.local_shape[0] = bytes;
    return chunk;
}

bool wait_until(const std::function<bool()> &condition) {
    for (int i = 0; i < 1000; ++i) {
        if (condition()) return true;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
}

/// A save with "gpu", begun: its copies are under way.
dlrover_save *begin_gpu(dlrover_context *c, std::uint64_t step, const char *memory, std::uint64_t bytes,
                        void *stream) {
    dlrover_save *s = nullptr;
    BOOST_REQUIRE_MESSAGE(dlrover_save_begin(c, step, bytes + 4000, &s) == DLROVER_OK, dlrover_error_text());
    auto chunk = bytes_chunk("gpu", bytes);
    const void *data = memory;
    BOOST_REQUIRE_MESSAGE(dlrover_save_add_cuda(s, 1, &chunk, &data, &bytes, stream) == DLROVER_OK,
                          dlrover_error_text());
    return s;
}

void check_gpu(dlrover_context *c, std::int64_t step, const std::vector<char> &bytes) {
    dlrover_restore *raw = nullptr;
    BOOST_REQUIRE_MESSAGE(dlrover_restore_open(c, &raw) == DLROVER_OK, dlrover_error_text());
    Restore r(raw);
    BOOST_TEST(dlrover_restore_step(raw) == step);
    dlrover_chunk chunk;
    const void *data;
    std::uint64_t count;
    BOOST_REQUIRE(dlrover_restore_find(raw, "gpu", &chunk, &data, &count) == DLROVER_OK);
    BOOST_REQUIRE(count == bytes.size());
    BOOST_TEST(std::memcmp(data, bytes.data(), bytes.size()) == 0);
}

#ifdef DLROVER_FAULT_INJECTION

int save_gpu(dlrover_context *c, std::uint64_t step, const std::vector<char> &bytes, void *stream) {
    return dlrover_save_commit(begin_gpu(c, step, on_device(bytes), bytes.size(), stream));
}

/// In a child: saves step 1, and is killed in the save of step 2 when one of its blocks has its checksum.
void die_in_checksum(const std::vector<char> &first, const std::vector<char> &second, void *stream) noexcept {
    try {
        auto c = open_context();
        if (save_gpu(c.get(), 1, first, stream) == DLROVER_OK) {
            ::setenv("DLROVER_FAULT", "mid_checksum:2", 1);
            (void)save_gpu(c.get(), 2, second, stream);
        }
    } catch (...) {
    }
    ::_exit(1);
}

/// What the dead process was saving is nowhere, and the next one saves it again.
void check_death_in_checksum(void *stream) {
    auto first = pattern(3 << 20, 1), second = pattern(3 << 20, 2);  // several blocks of the checksum
    pid_t child = ::fork();
    BOOST_REQUIRE(child >= 0);
    if (child == 0) die_in_checksum(first, second, stream);
    int status = 0;
    BOOST_REQUIRE(::waitpid(child, &status, 0) == child);
    BOOST_TEST(WIFSIGNALED(status));
    BOOST_TEST(WTERMSIG(status) == SIGKILL);
    auto c = open_context();
    check_gpu(c.get(), 1, first);
    BOOST_TEST(save_gpu(c.get(), 2, second, stream) == DLROVER_OK, dlrover_error_text());
    check_gpu(c.get(), 2, second);
}

#endif

}  // namespace

BOOST_FIXTURE_TEST_SUITE(lib_cuda_save_files, Files)

BOOST_AUTO_TEST_CASE(gpu_and_host_memory_in_one_checkpoint) {
    auto c = open_context();
    for (std::uint64_t step : {1u, 2u, 3u}) {
        auto bytes = pattern(3 << 20, static_cast<unsigned>(step));  // several blocks of the checksum
        auto host = numbers(1000, static_cast<float>(step));
        dlrover_save *s = begin_gpu(c.get(), step, on_device(bytes), bytes.size(), stream);
        auto b = floats("host", 1000);
        BOOST_TEST(dlrover_save_add(s, &b, host.data(), 4000) == DLROVER_OK);
        BOOST_TEST(dlrover_save_commit(s) == DLROVER_OK);
        check_gpu(c.get(), static_cast<std::int64_t>(step), bytes);
    }
}

BOOST_AUTO_TEST_CASE(the_table_has_the_hashes_of_all_blocks_that_came_from_a_gpu) {
    using namespace dlrover;
    constexpr std::uint64_t room = 16 << 20;
    auto memory = ckpt::Mapping::anonymous(room);
    BOOST_REQUIRE(memory.ok());
    std::shared_ptr<void> attached;
    lib::CudaStage stage(*lib::CudaDriver::load(), {1 << 20, {64 << 10, 3}});
    lib::ObjectWriter writer({memory->base(), room, TrainStep(1), SlotIndex(0), &attached},
                             {TrainStep(1), Rank(0), 1, {Term(1), 1}, "lineage"}, 2);
    const std::uint64_t lengths[] = {(5 << 20) + 1, 1 << 20, 0, 2 << 20}, zero[] = {0};
    const char *chunk_names[] = {"a", "b", "c", "d"};
    std::vector<std::vector<char>> tensors;
    std::vector<lib::ChunkSource> sources;
    for (std::size_t i = 0; i < std::size(lengths); ++i) {
        tensors.push_back(pattern(lengths[i], static_cast<unsigned>(i)));
        ckpt::ChunkInfo info;
        info.name = chunk_names[i];
        info.global_shape = info.local_shape = std::span(lengths).subspan(i, 1);
        info.global_offset = zero;
        info.bytes = lengths[i];
        const char *data = lengths[i] == 0 ? nullptr : on_device(tensors[i]);
        sources.push_back({info, reinterpret_cast<const std::byte *>(data)});
    }
    BOOST_REQUIRE(writer.add_cuda(sources, stage, stream).ok());
    auto layout = writer.finish();
    BOOST_REQUIRE_MESSAGE(layout.ok(), layout.status().message());
    auto bytes = reinterpret_cast<const std::uint8_t *>(memory->base() + layout->table_offset);
    auto table = ckpt::ObjectTableView::parse({bytes, layout->table_bytes}, layout->data_bytes);
    BOOST_REQUIRE_MESSAGE(table.ok(), table.status().message());
    for (std::size_t i = 0; i < std::size(lengths); ++i) {
        auto hashes = ckpt::block_hashes(std::as_bytes(std::span(tensors[i])));
        BOOST_TEST(table->chunk(i).checksum == ckpt::combine_block_hashes(hashes));
        if (hashes.size() == 1) hashes.clear();
        BOOST_TEST(std::ranges::equal(table->chunk(i).blocks, hashes), chunk_names[i]);
    }
}

BOOST_AUTO_TEST_CASE(empty_chunks_and_scalars) {
    auto c = open_context();
    dlrover_save *s = nullptr;
    BOOST_REQUIRE(dlrover_save_begin(c.get(), 1, 100, &s) == DLROVER_OK);
    dlrover_chunk chunks[2] = {bytes_chunk("none", 0), bytes_chunk("gpu", 1)};
    auto one = pattern(1, 1);
    const void *data[2] = {nullptr, on_device(one)};
    std::uint64_t bytes[2] = {0, 1};
    BOOST_TEST(dlrover_save_add_cuda(s, 1, chunks, data, bytes, stream) == DLROVER_OK);
    BOOST_TEST(dlrover_save_add_cuda(s, 1, chunks + 1, data + 1, bytes + 1, stream) == DLROVER_OK);
    BOOST_TEST(dlrover_save_commit(s) == DLROVER_OK);
    check_gpu(c.get(), 1, one);
}

BOOST_AUTO_TEST_CASE(memory_may_change_after_wait_staged) {
    auto c = open_context();
    BOOST_TEST(dlrover_wait_staged(c.get()) == DLROVER_OK);
    BOOST_TEST(dlrover_fence_staged(c.get(), stream) == DLROVER_OK);
    auto saved = pattern(100000, 1);
    char *memory = on_device(saved);
    dlrover_save *s = begin_gpu(c.get(), 1, memory, saved.size(), stream);
    int waited = DLROVER_E_SYSTEM;
    std::thread([&] { waited = dlrover_wait_staged(c.get()); }).join();
    BOOST_TEST(waited == DLROVER_OK);
    std::memset(memory, 0, saved.size());
    BOOST_TEST(dlrover_save_commit(s) == DLROVER_OK);
    check_gpu(c.get(), 1, saved);
}

BOOST_AUTO_TEST_CASE(work_behind_fence_staged_may_change_it) {
    auto c = open_context();
    auto saved = pattern(100000, 1), later = pattern(100000, 2);
    char *memory = on_device(saved);
    dlrover_save *s = begin_gpu(c.get(), 1, memory, saved.size(), stream);
    BOOST_TEST(dlrover_fence_staged(c.get(), stream) == DLROVER_OK);
    fake_cuda_launch_write(stream, memory, later.data(), later.size());
    fake_cuda_synchronize(stream);
    BOOST_TEST(dlrover_save_commit(s) == DLROVER_OK);
    check_gpu(c.get(), 1, saved);
}

BOOST_AUTO_TEST_CASE(a_failed_copy_fails_the_save_and_says_why) {
    auto c = open_context();
    auto bytes = pattern(100000, 1);
    const char *memory = on_device(bytes);
    BOOST_TEST(save_step(c.get(), 1) == DLROVER_OK);
    fake_cuda_fail_copy(0);
    dlrover_save *s = begin_gpu(c.get(), 2, memory, bytes.size(), stream);
    BOOST_TEST(dlrover_save_commit(s) == DLROVER_E_SYSTEM);
    BOOST_TEST(std::string(dlrover_error_text()).find("CUDA_ERROR_ILLEGAL_ADDRESS") != std::string::npos);
    BOOST_TEST(check_restored(c.get()) == 1);
    fake_cuda_fail_copy(0);
    s = begin_gpu(c.get(), 2, memory, bytes.size(), stream);
    BOOST_TEST(dlrover_wait_staged(c.get()) == DLROVER_E_SYSTEM);
    dlrover_save_abort(s);
    BOOST_TEST(dlrover_wait_staged(c.get()) == DLROVER_OK);
}

BOOST_AUTO_TEST_CASE(wrong_arguments_are_refused) {
    auto c = open_context();
    auto bytes = pattern(100, 1);
    auto chunk = bytes_chunk("gpu", 100);
    std::uint64_t count = 100;
    const void *device = on_device(bytes), *host = bytes.data();
    BOOST_TEST(dlrover_wait_staged(nullptr) == DLROVER_E_INVALID);
    BOOST_TEST(dlrover_fence_staged(nullptr, stream) == DLROVER_E_INVALID);
    BOOST_TEST(dlrover_save_add_cuda(nullptr, 1, &chunk, &device, &count, stream) == DLROVER_E_INVALID);
    for (bool null : {true, false}) {
        dlrover_save *s = nullptr;
        BOOST_REQUIRE(dlrover_save_begin(c.get(), 1, 1000, &s) == DLROVER_OK);
        BOOST_TEST(dlrover_save_add_cuda(s, 1, &chunk, null ? nullptr : &host, &count, stream) ==
                   DLROVER_E_INVALID);
        BOOST_TEST(dlrover_save_commit(s) == DLROVER_E_INVALID);
    }
    BOOST_TEST(save_step(c.get(), 2) == DLROVER_OK);
}

BOOST_AUTO_TEST_CASE(a_child_has_no_stage) {
    auto c = open_context();
    auto bytes = pattern(100000, 1);
    dlrover_save *s = begin_gpu(c.get(), 1, on_device(bytes), bytes.size(), stream);
    pid_t child = ::fork();
    if (child == 0) {
        bool refused = dlrover_wait_staged(c.get()) == DLROVER_E_FORKED &&
                       dlrover_fence_staged(c.get(), nullptr) == DLROVER_E_FORKED &&
                       dlrover_save_commit(s) == DLROVER_E_FORKED;
        ::_exit(refused ? 0 : 1);
    }
    int status = 0;
    BOOST_REQUIRE(::waitpid(child, &status, 0) == child);
    BOOST_TEST(status == 0);
    BOOST_TEST(dlrover_save_commit(s) == DLROVER_OK);
    check_gpu(c.get(), 1, bytes);
}

#ifdef DLROVER_FAULT_INJECTION
BOOST_AUTO_TEST_CASE(killed_in_the_checksums_the_step_before_is_in_its_file) {
    check_death_in_checksum(stream);
}
#endif

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(lib_cuda_save_slots, Slots)

BOOST_AUTO_TEST_CASE(slots_become_registered_and_grow) {
    auto c = open_context();
    for (std::uint64_t step = 1; step <= 12; ++step) {
        auto bytes = pattern((1 + step / 4) * 1500000, static_cast<unsigned>(step));
        dlrover_save *s = begin_gpu(c.get(), step, on_device(bytes), bytes.size(), stream);
        BOOST_TEST(dlrover_save_commit(s) == DLROVER_OK);
        check_gpu(c.get(), static_cast<std::int64_t>(step), bytes);
        BOOST_TEST(wait_until([] { return fake_cuda_registered_bytes() >= 1500000; }));
    }
    BOOST_TEST(count_calls("cuMemcpyDtoHAsync", "direct") > 0u);
    c.reset();
    BOOST_TEST(fake_cuda_registered_bytes() == 0u);
}

BOOST_AUTO_TEST_CASE(nothing_is_copied_into_a_slot_that_was_given_back) {
    auto c = open_context();
    auto bytes = pattern(800000, 1);
    const char *memory = on_device(bytes);
    for (std::uint64_t step = 1; step <= 3; ++step)  // every slot is registered
        BOOST_TEST(dlrover_save_commit(begin_gpu(c.get(), step, memory, bytes.size(), stream)) == DLROVER_OK);
    BOOST_TEST(wait_until([] { return fake_cuda_registered_bytes() >= 3 * 800000; }));
    dlrover_save *s = begin_gpu(c.get(), 4, memory, bytes.size(), stream);
    auto waits = count_calls("cuStreamSynchronize");
    dlrover_save_abort(s);
    BOOST_TEST(count_calls("cuStreamSynchronize") == waits + 1);
    BOOST_TEST(wait_until([&] { return daemon.granted() == 0; }));
    check_gpu(c.get(), 3, bytes);
}

BOOST_AUTO_TEST_CASE(a_daemon_that_restarts_while_copies_are_under_way) {
    auto c = open_context();
    for (std::uint64_t step = 1; step <= 6; ++step) {
        auto bytes = pattern(900000, static_cast<unsigned>(step));
        dlrover_save *s = begin_gpu(c.get(), step, on_device(bytes), bytes.size(), stream);
        daemon.stop(step % 2 == 0);
        daemon.start();
        BOOST_TEST(dlrover_save_commit(s) == DLROVER_OK, dlrover_error_text());
        check_gpu(c.get(), static_cast<std::int64_t>(step), bytes);
    }
}

BOOST_AUTO_TEST_CASE(memory_lost_with_the_daemon_is_unregistered) {
    auto c = open_context();
    for (std::uint64_t step = 1; step <= 6; ++step) {
        auto bytes = pattern(900000, static_cast<unsigned>(step));
        BOOST_TEST(dlrover_save_commit(begin_gpu(c.get(), step, on_device(bytes), bytes.size(), stream)) ==
                       DLROVER_OK,
                   dlrover_error_text());
        check_gpu(c.get(), static_cast<std::int64_t>(step), bytes);
        BOOST_TEST(wait_until([] { return fake_cuda_registered_bytes() >= 900000; }));
        if (step % 2 == 0) {
            daemon.lose_memory();
            daemon.start();
        }
    }
    BOOST_TEST(count_calls("cuMemHostUnregister") > 0u);
}

#ifdef DLROVER_FAULT_INJECTION
BOOST_AUTO_TEST_CASE(killed_in_the_checksums_the_step_before_is_in_its_slot) {
    check_death_in_checksum(stream);
}
#endif

BOOST_AUTO_TEST_SUITE_END()
