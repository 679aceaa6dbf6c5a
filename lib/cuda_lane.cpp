// SPDX-License-Identifier: Apache-2.0
#include "lib/cuda_lane.h"

#include <algorithm>
#include <cstring>

namespace dlrover::lib {
namespace {

constexpr const char *copying = "copying from the GPU failed";
/// Of smaller ones the call and its begin on the GPU take longer than the bytes.
constexpr std::uint64_t small_bytes = std::uint64_t{256} << 10;

}  // namespace

CudaLane::CudaLane(std::shared_ptr<const CudaDriver> driver, cuda::Context context, CudaRing ring)
    : driver_(std::move(driver)), context_(context), ring_(ring) {}

Result<std::unique_ptr<CudaLane>> CudaLane::create(std::shared_ptr<const CudaDriver> driver,
                                                   cuda::Context context, CudaRing ring) {
    std::unique_ptr<CudaLane> lane(new CudaLane(std::move(driver), context, ring));
    const CudaDriver &d = *lane->driver_;
    CudaScope scope(d, context);
    DLROVER_TRY(scope.status());
    DLROVER_TRY(d.check(d.cuStreamCreate(&lane->stream_, cuda::stream_non_blocking),
                        "a stream for saving could not be made"));
    // Who waits for a copy sleeps, and leaves the processor to the training.
    for (auto [event, flags] :
         {std::pair{&lane->ready_, cuda::event_disable_timing},
          std::pair{&lane->done_, cuda::event_disable_timing | cuda::event_blocking_sync}})
        DLROVER_TRY(d.check(d.cuEventCreate(event, flags), "an event for saving could not be made"));
    return lane;
}

CudaLane::~CudaLane() {
    CudaScope scope(*driver_, context_);
    for (cuda::Event event : block_ready_) (void)driver_->cuEventDestroy(event);
    if (ready_ != nullptr) (void)driver_->cuEventDestroy(ready_);
    if (done_ != nullptr) (void)driver_->cuEventDestroy(done_);
    if (stream_ != nullptr) (void)driver_->cuStreamDestroy(stream_);
    if (blocks_ != nullptr) (void)driver_->cuMemFreeHost(blocks_);
}

Status CudaLane::begin_behind(cuda::Stream stream) {
    DLROVER_TRY(driver_->check(driver_->cuEventRecord(ready_, stream),
                               "the stream that was named can not be waited for"));
    busy_ = true;
    return driver_->check(driver_->cuStreamWaitEvent(stream_, ready_, 0), copying);
}

Status CudaLane::begin(const CudaCopy &copy, const PinnedRange *pinned) {
    for (std::uint64_t at = 0; at < copy.bytes;) {
        std::uint64_t left = copy.bytes - at;
        std::uint64_t direct = pinned != nullptr ? pinned->registered(copy.to + at, left) : 0;
        if (direct == 0) {
            std::uint64_t bytes = std::min(left, ring_.block_bytes);
            parts_.push_back({copy.to + at, copy.from + at, bytes});
            at += bytes;
            continue;
        }
        CudaCopy part{copy.to + at, copy.from + at, direct};
        if (direct < small_bytes)
            small_.push_back(part);
        else
            DLROVER_TRY(begin_direct(part));
        at += direct;
    }
    return {};
}

Status CudaLane::begin_direct(const CudaCopy &copy) {
    return driver_->check(driver_->cuMemcpyDtoHAsync(copy.to, copy.from, copy.bytes, stream_), copying);
}

bool CudaLane::begin_batch() {
    if (driver_->cuMemcpyBatchAsync == nullptr || !batches_) return false;
    std::vector<cuda::Pointer> to, from;
    std::vector<std::size_t> bytes;
    for (const CudaCopy &copy : small_) {
        to.push_back(reinterpret_cast<cuda::Pointer>(copy.to));
        from.push_back(copy.from);
        bytes.push_back(copy.bytes);
    }
    cuda::CopyAttributes attributes;
    std::size_t first = 0, failed = 0;
    batches_ = driver_->cuMemcpyBatchAsync(to.data(), from.data(), bytes.data(), bytes.size(), &attributes,
                                           &first, 1, &failed, stream_) == cuda::success;
    return batches_;
}

Status CudaLane::begin_small() {
    std::vector<CudaCopy> small;
    bool begun = small_.size() > 1 && begin_batch();
    small.swap(small_);
    if (begun) return {};
    for (const CudaCopy &copy : small) DLROVER_TRY(begin_direct(copy));
    return {};
}

Status CudaLane::end_run() {
    DLROVER_TRY(begin_small());
    DLROVER_TRY(driver_->check(driver_->cuEventRecord(done_, stream_), copying));
    return issue();
}

Status CudaLane::create_ring() {
    if (blocks_ == nullptr) {
        void *memory = nullptr;
        DLROVER_TRY(driver_->check(
            driver_->cuMemHostAlloc(&memory, ring_.block_bytes * ring_.blocks, cuda::host_portable),
            "no pinned memory for copying from the GPU"));
        blocks_ = static_cast<std::byte *>(memory);
    }
    while (block_ready_.size() < ring_.blocks) {
        cuda::Event event = nullptr;
        DLROVER_TRY(driver_->check(
            driver_->cuEventCreate(&event, cuda::event_disable_timing | cuda::event_blocking_sync), copying));
        block_ready_.push_back(event);
    }
    return {};
}

std::byte *CudaLane::block(std::uint64_t part) const noexcept {
    return blocks_ + part % ring_.blocks * ring_.block_bytes;
}

Status CudaLane::issue() {
    if (parts_.empty()) return {};
    DLROVER_TRY(create_ring());
    for (; under_way_ < parts_.size() && under_way_ < ring_.blocks; ++under_way_) {
        const CudaCopy &part = parts_[under_way_];
        std::uint64_t number = taken_ + under_way_;
        DLROVER_TRY(driver_->check(driver_->cuMemcpyDtoHAsync(block(number), part.from, part.bytes, stream_),
                                   copying));
        DLROVER_TRY(
            driver_->check(driver_->cuEventRecord(block_ready_[number % ring_.blocks], stream_), copying));
    }
    return {};
}

Status CudaLane::take_oldest() {
    DLROVER_TRY(driver_->check(driver_->cuEventSynchronize(block_ready_[taken_ % ring_.blocks]), copying));
    const CudaCopy &part = parts_.front();
    std::memcpy(part.to, block(taken_), part.bytes);
    parts_.pop_front();
    --under_way_;
    ++taken_;
    return {};
}

Status CudaLane::pump() {
    while (!parts_.empty()) {
        DLROVER_TRY(issue());
        DLROVER_TRY(take_oldest());
    }
    return {};
}

void CudaLane::stop() {
    if (busy_) (void)driver_->cuStreamSynchronize(stream_);
    small_.clear();
    parts_.clear();
    under_way_ = 0;
    busy_ = false;
}

}  // namespace dlrover::lib
