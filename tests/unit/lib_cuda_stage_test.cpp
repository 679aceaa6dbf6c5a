// SPDX-License-Identifier: Apache-2.0
// Copies from (fake) GPU memory: their order, what they wait for, registered memory and the ring.
#include <sys/mman.h>

#include <chrono>
#include <functional>
#include <thread>

#include "fake_cuda.h"
#include "lib/cuda_stage.h"

using namespace dlrover;
using namespace dlrover::lib;
using namespace dlrover::test;

namespace {

constexpr std::uint64_t piece = 64 << 10, ring_block = 4 << 10;
constexpr std::size_t slot_bytes = 4 * piece;

struct Staged : FakeCuda {
    Staged()
        : base(static_cast<std::byte *>(
              ::mmap(nullptr, slot_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
        stage = make(*CudaDriver::load());
    }
    ~Staged() {
        stage.reset();
        attached.reset();
        ::munmap(base, slot_bytes);
    }
    static std::unique_ptr<CudaStage> make(std::shared_ptr<const CudaDriver> driver) {
        return std::make_unique<CudaStage>(driver, CudaStage::Options{piece, {ring_block, 3}});
    }

    SaveTarget target() { return {base, slot_bytes, TrainStep(1), SlotIndex(0), &attached}; }
    PinnedRange &range() { return *static_cast<PinnedRange *>(attached.get()); }
    /// One copy to the slot's byte `at`.
    Status copy(std::uint64_t at, const char *from, std::size_t bytes, void *behind) {
        CudaCopy one{base + at, reinterpret_cast<cuda::Pointer>(from), bytes};
        return stage->copy(std::span(&one, 1), behind, target());
    }
    Status copy(std::uint64_t at, const char *from, std::size_t bytes) {
        return copy(at, from, bytes, stream);
    }
    /// After it, the slot's memory is registered as far as the driver lets us.
    bool register_slot() {
        auto bytes = pattern(1, 0);
        const char *byte = on_device(bytes);
        BOOST_TEST(copy(0, byte, 1).ok());
        BOOST_TEST(stage->wait().ok());
        stage->end();
        return range().finished();
    }
    bool slot_has(std::uint64_t at, const std::vector<char> &bytes) const {
        return std::memcmp(base + at, bytes.data(), bytes.size()) == 0;
    }

    std::byte *base;
    std::shared_ptr<void> attached;
    std::unique_ptr<CudaStage> stage;
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(lib_cuda_stage, Staged)

BOOST_AUTO_TEST_CASE(through_the_ring_while_nothing_is_registered) {
    fake_cuda_hold_registration(1);
    auto bytes = pattern(10 * ring_block + 17, 1);
    BOOST_TEST(copy(64, on_device(bytes), bytes.size()).ok());
    BOOST_TEST(!slot_has(64, bytes));
    BOOST_TEST(stage->wait().ok());
    BOOST_TEST(slot_has(64, bytes));
    BOOST_TEST(count_calls("cuMemcpyDtoHAsync", "ring") == 11u);
    BOOST_TEST(count_calls("cuMemcpyDtoHAsync", "direct") == 0u);
    BOOST_TEST(count_calls("cuMemHostAlloc") == 1u);
    fake_cuda_hold_registration(0);
}

BOOST_AUTO_TEST_CASE(straight_into_registered_memory_cut_where_pieces_meet) {
    BOOST_TEST(register_slot());
    BOOST_TEST(fake_cuda_registered_bytes() == slot_bytes);
    BOOST_TEST(count_calls("cuMemHostRegister") == slot_bytes / piece);
    auto rings = count_calls("cuMemcpyDtoHAsync", "ring");
    auto bytes = pattern(2 * piece + 300, 2);
    BOOST_TEST(copy(piece - 100, on_device(bytes), bytes.size()).ok());
    BOOST_TEST(stage->wait().ok());
    BOOST_TEST(slot_has(piece - 100, bytes));
    BOOST_TEST(count_calls("cuMemcpyBatchAsync 100,65536,65536,200 on s1") == 1u);
    BOOST_TEST(count_calls("cuMemcpyDtoHAsync", "ring") == rings);
}

BOOST_AUTO_TEST_CASE(the_order_of_calls) {
    BOOST_TEST(register_slot());
    auto bytes = pattern(100, 3);
    auto before = calls().size();
    BOOST_TEST(copy(0, on_device(bytes), 100).ok());
    BOOST_TEST(stage->wait().ok());
    auto all = calls();
    std::vector<std::string> now(all.begin() + static_cast<std::ptrdiff_t>(before), all.end());
    BOOST_TEST((now == std::vector<std::string>{"cuEventRecord s0", "cuStreamWaitEvent s1 for s0",
                                                "cuMemcpyDtoHAsync 100 on s1 direct", "cuEventRecord s1",
                                                "cuEventSynchronize s1"}));
    BOOST_TEST(count_calls("cuStreamCreate", "s1 non-blocking") == 1u);
}

BOOST_AUTO_TEST_CASE(behind_the_work_that_the_stream_had) {
    for (bool registered : {false, true}) {
        if (registered) BOOST_TEST(register_slot());
        char *memory = on_device(pattern(3 * ring_block, 4));
        auto computed = pattern(3 * ring_block, 5);
        fake_cuda_launch_write(stream, memory, computed.data(), computed.size());
        BOOST_TEST(copy(0, memory, computed.size()).ok());
        BOOST_TEST(stage->wait().ok());
        BOOST_TEST(slot_has(0, computed));
        stage->end();
    }
}

BOOST_AUTO_TEST_CASE(behind_the_default_stream) {
    char *memory = on_device(pattern(100, 4));
    auto computed = pattern(100, 5);
    fake_cuda_launch_write(nullptr, memory, computed.data(), computed.size());
    BOOST_TEST(copy(0, memory, computed.size(), nullptr).ok());
    BOOST_TEST(stage->wait().ok());
    BOOST_TEST(slot_has(0, computed));
    BOOST_TEST(count_calls("cuEventRecord", "default") == 1u);
}

BOOST_AUTO_TEST_CASE(a_fence_keeps_later_work_behind_the_copies) {
    for (bool fenced : {false, true}) {
        BOOST_TEST(register_slot());
        auto saved = pattern(500, 6), later = pattern(500, 7);
        char *memory = on_device(saved);
        BOOST_TEST(copy(0, memory, 500).ok());
        if (fenced) BOOST_TEST(stage->fence(stream).ok());
        fake_cuda_launch_write(stream, memory, later.data(), later.size());
        fake_cuda_synchronize(stream);
        BOOST_TEST(std::memcmp(memory, later.data(), 500) == 0);
        BOOST_TEST(stage->wait().ok());
        // Without it the fake shows what a GPU may do: the update overtakes the copy.
        BOOST_TEST(slot_has(0, fenced ? saved : later));
        stage->end();
    }
    BOOST_TEST(count_calls("cuStreamWaitEvent", "s0 for s1") == 1u);
}

BOOST_AUTO_TEST_CASE(a_fence_empties_the_ring_first) {
    fake_cuda_hold_registration(1);
    auto saved = pattern(9 * ring_block, 6), later = pattern(9 * ring_block, 7);
    char *memory = on_device(saved);
    BOOST_TEST(copy(0, memory, saved.size()).ok());
    BOOST_TEST(stage->fence(stream).ok());
    fake_cuda_launch_write(stream, memory, later.data(), later.size());
    fake_cuda_synchronize(stream);
    BOOST_TEST(stage->wait().ok());
    BOOST_TEST(slot_has(0, saved));
    fake_cuda_hold_registration(0);
}

BOOST_AUTO_TEST_CASE(refused_registration_keeps_the_ring) {
    fake_cuda_refuse_registration(1);
    BOOST_TEST(!register_slot());
    BOOST_TEST(fake_cuda_registered_bytes() == piece);
    auto bytes = pattern(2 * ring_block, 8);
    BOOST_TEST(copy(piece - ring_block, on_device(bytes), bytes.size()).ok());
    BOOST_TEST(stage->wait().ok());
    BOOST_TEST(slot_has(piece - ring_block, bytes));
    BOOST_TEST(count_calls("cuMemcpyDtoHAsync " + std::to_string(ring_block), "direct") == 1u);
    BOOST_TEST(count_calls("cuMemcpyDtoHAsync " + std::to_string(ring_block), "ring") == 1u);
    BOOST_TEST(count_calls("cuMemHostRegister") == 2u, "what was refused is not asked for again");
}

BOOST_AUTO_TEST_CASE(a_driver_without_registration_and_capture) {
    auto old = std::make_shared<CudaDriver>(**CudaDriver::load());
    old->cuMemHostRegister = nullptr;
    old->cuThreadExchangeStreamCaptureMode = nullptr;
    old->cuStreamIsCapturing = nullptr;
    stage = make(old);
    auto bytes = pattern(100, 9);
    BOOST_TEST(copy(0, on_device(bytes), 100).ok());
    BOOST_TEST(stage->wait().ok());
    BOOST_TEST(slot_has(0, bytes));
    BOOST_TEST(!attached);
}

namespace {

/// Three small copies in one call, of which one lies where two registered pieces meet.
struct Several {
    explicit Several(Staged &test) : test_(test) {
        for (unsigned i = 0; i < 3; ++i) bytes_.push_back(pattern(100 + i, 20 + i));
        for (unsigned i = 0; i < 3; ++i)
            copies_.push_back(
                {test.base + at[i], reinterpret_cast<cuda::Pointer>(on_device(bytes_[i])), bytes_[i].size()});
    }
    void save() {
        BOOST_TEST(test_.stage->copy(copies_, test_.stream, test_.target()).ok());
        BOOST_TEST(test_.stage->wait().ok());
        test_.stage->end();
        for (unsigned i = 0; i < 3; ++i) BOOST_TEST(test_.slot_has(at[i], bytes_[i]));
    }

  private:
    static constexpr std::uint64_t at[] = {0, 1000, piece - 50};
    Staged &test_;
    std::vector<std::vector<char>> bytes_;
    std::vector<CudaCopy> copies_;
};

}  // namespace

BOOST_AUTO_TEST_CASE(small_copies_begin_in_one_call) {
    BOOST_TEST(register_slot());
    auto one_by_one = count_calls("cuMemcpyDtoHAsync");
    Several(*this).save();
    BOOST_TEST(count_calls("cuMemcpyBatchAsync 100,101,50,52 on s1") == 1u);
    BOOST_TEST(count_calls("cuMemcpyDtoHAsync") == one_by_one);
}

BOOST_AUTO_TEST_CASE(a_large_copy_begins_alone) {
    auto large = pattern(std::size_t{256} << 10, 30);
    BOOST_REQUIRE(large.size() <= slot_bytes);
    stage = std::make_unique<CudaStage>(*CudaDriver::load(), CudaStage::Options{slot_bytes, {ring_block, 3}});
    BOOST_TEST(register_slot());
    BOOST_TEST(copy(0, on_device(large), large.size()).ok());
    BOOST_TEST(stage->wait().ok());
    BOOST_TEST(slot_has(0, large));
    BOOST_TEST(count_calls("cuMemcpyDtoHAsync 262144 on s1 direct") == 1u);
    BOOST_TEST(count_calls("cuMemcpyBatchAsync") == 0u);
}

BOOST_AUTO_TEST_CASE(a_driver_that_refuses_to_copy_several_at_once_is_not_asked_again) {
    BOOST_TEST(register_slot());
    auto one_by_one = count_calls("cuMemcpyDtoHAsync");
    fake_cuda_fail_call("cuMemcpyBatchAsync", 801);
    for (unsigned round = 1; round < 3; ++round) {
        Several(*this).save();
        BOOST_TEST(count_calls("cuMemcpyBatchAsync") == 1u);
        BOOST_TEST(count_calls("cuMemcpyDtoHAsync") == one_by_one + 4 * round);
    }
}

BOOST_AUTO_TEST_CASE(a_driver_that_can_not_copy_several_at_once) {
    auto old = std::make_shared<CudaDriver>(**CudaDriver::load());
    old->cuMemcpyBatchAsync = nullptr;
    stage = make(old);
    BOOST_TEST(register_slot());
    Several(*this).save();
    BOOST_TEST(count_calls("cuMemcpyBatchAsync") == 0u);
}

BOOST_AUTO_TEST_CASE(a_failed_copy_is_told_until_the_save_ends) {
    for (bool registered : {false, true}) {
        fake_cuda_hold_registration(!registered);
        if (registered) BOOST_TEST(register_slot());
        auto bytes = pattern(5 * ring_block, 10);
        const char *memory = on_device(bytes);
        fake_cuda_fail_copy(registered ? 0 : 2);
        BOOST_TEST(copy(0, memory, bytes.size()).ok());
        for (int i = 0; i < 2; ++i) {
            Status waited = stage->wait();
            BOOST_TEST((waited.code() == Code::system));
            BOOST_TEST(waited.message().find("CUDA_ERROR_ILLEGAL_ADDRESS") != std::string::npos);
        }
        BOOST_TEST(!stage->fence(stream).ok());
        BOOST_TEST(!copy(0, memory, 1).ok());
        stage->end();
        stage = make(*CudaDriver::load());  // after such an error a context is of no use
        BOOST_TEST(copy(0, memory, bytes.size()).ok());
        BOOST_TEST(stage->wait().ok());
        BOOST_TEST(slot_has(0, bytes));
        stage->end();
    }
}

BOOST_AUTO_TEST_CASE(an_ended_save_writes_nothing_more) {
    auto bytes = pattern(20 * ring_block, 11);
    BOOST_TEST(copy(0, on_device(bytes), bytes.size()).ok());
    stage->end();
    std::memset(base, 0, slot_bytes);
    BOOST_TEST(stage->wait().ok());
    BOOST_TEST(stage->fence(stream).ok());
    fake_cuda_synchronize(stream);
    BOOST_TEST(slot_has(0, std::vector<char>(bytes.size())));
    auto next = pattern(6 * ring_block, 12);
    BOOST_TEST(copy(0, on_device(next), next.size()).ok());
    BOOST_TEST(stage->wait().ok());
    BOOST_TEST(slot_has(0, next));
}

BOOST_AUTO_TEST_CASE(a_stream_in_capture_is_left_alone) {
    auto bytes = pattern(100, 13);
    const char *memory = on_device(bytes);
    fake_cuda_begin_capture(stream);
    for (void *behind : {stream, static_cast<void *>(nullptr)}) {
        Status refused = copy(0, memory, 100, behind);
        BOOST_TEST((refused.code() == Code::invalid_argument));
        BOOST_TEST(refused.message().find("captured into a CUDA graph") != std::string::npos);
        stage->end();
    }
    BOOST_TEST(fake_cuda_end_capture(stream) == 0);
}

BOOST_AUTO_TEST_CASE(another_threads_capture_is_not_disturbed) {
    void *other = fake_cuda_stream(0);
    fake_cuda_begin_capture(other);
    BOOST_TEST(register_slot(), "streams, events, ring and registration are made in relaxed mode");
    auto bytes = pattern(2 * piece, 14);
    BOOST_TEST(copy(0, on_device(bytes), bytes.size()).ok());
    BOOST_TEST(stage->wait().ok());
    BOOST_TEST(slot_has(0, bytes));
    BOOST_TEST(fake_cuda_end_capture(other) == 0);
}

BOOST_AUTO_TEST_CASE(a_fence_for_a_captured_stream_waits_itself) {
    auto bytes = pattern(100, 15);
    BOOST_TEST(register_slot());
    BOOST_TEST(copy(0, on_device(bytes), 100).ok());
    fake_cuda_begin_capture(stream);
    BOOST_TEST(stage->fence(stream).ok());
    BOOST_TEST(slot_has(0, bytes));
    BOOST_TEST(fake_cuda_end_capture(stream) == 0);
}

BOOST_AUTO_TEST_CASE(each_gpu_has_a_stream_of_ours) {
    auto here = pattern(100, 16), there = pattern(200, 17);
    const char *first = on_device(here), *second = on_device(there, 1);
    CudaCopy both[2] = {{base, reinterpret_cast<cuda::Pointer>(first), 100},
                        {base + 128, reinterpret_cast<cuda::Pointer>(second), 200}};
    Status refused = stage->copy(both, stream, target());
    BOOST_TEST((refused.code() == Code::invalid_argument));
    BOOST_TEST(refused.message().find("several GPUs") != std::string::npos);
    BOOST_TEST(copy(0, first, 100).ok());
    BOOST_TEST(copy(128, second, 200, fake_cuda_stream(1)).ok());
    BOOST_TEST(stage->wait().ok());
    BOOST_TEST(slot_has(0, here));
    BOOST_TEST(slot_has(128, there));
    BOOST_TEST(!copy(128, second, 200, stream).ok(), "a stream of another GPU");
}

BOOST_AUTO_TEST_CASE(memory_that_belongs_to_no_context) {
    auto bytes = pattern(100, 18);
    BOOST_TEST(copy(0, on_device(bytes, 1, true), 100, nullptr).ok());
    BOOST_TEST(copy(128, on_device(bytes, 1, true), 100, nullptr).ok());
    BOOST_TEST(stage->wait().ok());
    BOOST_TEST(slot_has(0, bytes));
    BOOST_TEST(slot_has(128, bytes));
    BOOST_TEST(count_calls("cuDevicePrimaryCtxRetain 1") == 1u);
    BOOST_TEST(count_calls("cuStreamCreate") == 1u);
}

BOOST_AUTO_TEST_CASE(memory_of_the_host_is_refused) {
    auto bytes = pattern(100, 19);
    Status refused = copy(0, bytes.data(), 100);
    BOOST_TEST(refused.message() == "a chunk's pointer is not memory of a GPU");
}

BOOST_AUTO_TEST_CASE(registered_memory_that_grows) {
    SaveTarget small = target();
    small.capacity = piece + 4096;
    auto bytes = pattern(100, 20);
    CudaCopy one{base, reinterpret_cast<cuda::Pointer>(on_device(bytes)), 100};
    BOOST_TEST(stage->copy(std::span(&one, 1), stream, small).ok());
    BOOST_TEST(range().finished());
    BOOST_TEST(fake_cuda_registered_bytes() == piece + 4096);
    BOOST_TEST(register_slot());
    BOOST_TEST(fake_cuda_registered_bytes() == slot_bytes);
    auto across = pattern(8192, 21);
    BOOST_TEST(copy(piece, on_device(across), 8192).ok());
    BOOST_TEST(stage->wait().ok());
    BOOST_TEST(slot_has(piece, across));
    attached.reset();
    BOOST_TEST(fake_cuda_registered_bytes() == 0u);
}

/// Until it is so, for a few seconds.
bool becomes(const std::function<bool()> &is_so) {
    for (int i = 0; i < 5000 && !is_so(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return is_so();
}

BOOST_AUTO_TEST_CASE(what_is_prepared_is_registered_as_its_pages_come) {
    auto bytes = pattern(100, 22);
    auto pointer = reinterpret_cast<cuda::Pointer>(on_device(bytes));
    auto slot = target();
    BOOST_TEST(stage->prepare(pointer, std::span(&slot, 1)).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    BOOST_TEST(fake_cuda_registered_bytes() == 0u, "nobody has made pages so far");
    std::memset(base, 0, piece);
    BOOST_TEST(becomes([] { return fake_cuda_registered_bytes() == piece; }));
    std::memset(base + piece, 0, slot_bytes - piece);
    BOOST_TEST(becomes([] { return fake_cuda_registered_bytes() == slot_bytes; }));
    BOOST_TEST(copy(0, on_device(bytes), bytes.size()).ok());
    BOOST_TEST(stage->wait().ok());
    BOOST_TEST(slot_has(0, bytes));
    BOOST_TEST(count_calls("cuMemcpyDtoHAsync", "direct") == 1u);
    BOOST_TEST(count_calls("cuMemHostAlloc") == 0u, "the ring is not needed");
}

BOOST_AUTO_TEST_CASE(a_save_does_not_wait_for_pages) {
    auto slot = target();
    auto bytes = pattern(100, 23);
    auto pointer = reinterpret_cast<cuda::Pointer>(on_device(bytes));
    BOOST_TEST(stage->prepare(pointer, std::span(&slot, 1)).ok());
    BOOST_TEST(register_slot(), "from the first save on the pages are its own");
    BOOST_TEST(fake_cuda_registered_bytes() == slot_bytes);
}

BOOST_AUTO_TEST_CASE(prepared_memory_goes_at_once) {
    auto slot = target();
    auto bytes = pattern(100, 24);
    auto pointer = reinterpret_cast<cuda::Pointer>(on_device(bytes));
    BOOST_TEST(stage->prepare(pointer, std::span(&slot, 1)).ok());
    auto begun = std::chrono::steady_clock::now();
    attached.reset();
    BOOST_TEST((std::chrono::steady_clock::now() - begun < std::chrono::seconds(2)));
    BOOST_TEST(count_calls("cuMemHostRegister") == 0u);
    Status refused = stage->prepare(reinterpret_cast<cuda::Pointer>(bytes.data()), std::span(&slot, 1));
    BOOST_TEST(refused.message() == "a chunk's pointer is not memory of a GPU");
    auto old = std::make_shared<CudaDriver>(**CudaDriver::load());
    old->cuMemHostRegister = nullptr;
    stage = make(old);
    BOOST_TEST(stage->prepare(pointer, std::span(&slot, 1)).ok());
    BOOST_TEST(!attached);
}

BOOST_AUTO_TEST_SUITE_END()
