// SPDX-License-Identifier: Apache-2.0
#include "lib/cuda_stage.h"

#include <algorithm>

namespace dlrover::lib {
namespace {

Result<bool> being_captured(const CudaDriver &driver, cuda::Stream stream) {
    if (driver.cuStreamIsCapturing == nullptr) return false;
    int status = cuda::capture_status_none;
    cuda::Result result = driver.cuStreamIsCapturing(stream, &status);
    // The default stream, while a stream that waits for it is being captured.
    if (result == cuda::stream_capture_implicit) return true;
    DLROVER_TRY(driver.check(result, "the stream that was named can not be used"));
    return status != cuda::capture_status_none;
}

}  // namespace

Result<std::unique_ptr<CudaStage>> CudaStage::create(Options options) {
    auto driver = CudaDriver::load();
    if (!driver) return driver.take_status();
    return std::make_unique<CudaStage>(*driver, options);
}

CudaStage::CudaStage(std::shared_ptr<const CudaDriver> driver, Options options)
    : driver_(std::move(driver)), options_(options) {}

CudaStage::~CudaStage() {
    end();
    lanes_.clear();
    for (const Primary &p : primaries_) (void)driver_->cuDevicePrimaryCtxRelease(p.device);
}

Result<cuda::Context> CudaStage::primary_context(int ordinal) {
    for (const Primary &p : primaries_)
        if (p.ordinal == ordinal) return p.context;
    Primary primary{ordinal, 0, nullptr};
    DLROVER_TRY(driver_->check(driver_->cuDeviceGet(&primary.device, ordinal), "the GPU can not be used"));
    DLROVER_TRY(driver_->check(driver_->cuDevicePrimaryCtxRetain(&primary.context, primary.device),
                               "the GPU can not be used"));
    primaries_.push_back(primary);
    return primary.context;
}

Result<cuda::Context> CudaStage::context_of(cuda::Pointer pointer) {
    unsigned type = 0;
    cuda::Result known = driver_->cuPointerGetAttribute(&type, cuda::attribute_memory_type, pointer);
    if (known != cuda::success || type != cuda::memory_type_device)
        return Status(Code::invalid_argument, "a chunk's pointer is not memory of a GPU");
    cuda::Context context = nullptr;
    known = driver_->cuPointerGetAttribute(&context, cuda::attribute_context, pointer);
    if (known == cuda::success && context != nullptr) return context;
    // Memory of a pool, or mapped: it belongs to a device, and to none of its contexts.
    int ordinal = 0;
    DLROVER_TRY(
        driver_->check(driver_->cuPointerGetAttribute(&ordinal, cuda::attribute_device_ordinal, pointer),
                       "the GPU of a chunk is not known"));
    return primary_context(ordinal);
}

Result<CudaLane *> CudaStage::lane_in(cuda::Context context) {
    for (const auto &lane : lanes_)
        if (lane->context() == context) return lane.get();
    auto made = CudaLane::create(driver_, context, options_.ring);
    if (!made) return made.take_status();
    lanes_.push_back(std::move(*made));
    return lanes_.back().get();
}

Result<CudaLane *> CudaStage::lane_of(std::span<const CudaCopy> copies) {
    cuda::Context common = nullptr;
    for (const CudaCopy &copy : copies) {
        auto context = context_of(copy.from);
        if (!context) return context.take_status();
        if (common != nullptr && *context != common)
            return Status(Code::invalid_argument,
                          "the chunks lie on several GPUs: add those of each GPU in a call of their own");
        common = *context;
    }
    return lane_in(common);
}

PinnedRange *CudaStage::range_of(const SaveTarget &target, cuda::Context context) const {
    if (driver_->cuMemHostRegister == nullptr || target.attached == nullptr) return nullptr;
    if (!*target.attached)
        *target.attached = std::make_shared<PinnedRange>(driver_, context, target.base, options_.piece_bytes);
    return static_cast<PinnedRange *>(target.attached->get());
}

PinnedRange *CudaStage::pinned(const SaveTarget &target, const CudaLane &lane) const {
    PinnedRange *range = range_of(target, lane.context());
    if (range != nullptr) range->cover(target.capacity);
    return range;
}

Status CudaStage::prepare(cuda::Pointer pointer, std::span<const SaveTarget> targets) {
    std::lock_guard lock(mutex_);
    auto context = context_of(pointer);
    if (!context) return context.take_status();
    for (const SaveTarget &target : targets)
        if (PinnedRange *range = range_of(target, *context)) range->cover_later(target.capacity);
    return {};
}

Status CudaStage::copy_in(CudaLane &lane, std::span<const CudaCopy> copies, cuda::Stream stream,
                          const PinnedRange *pinned) {
    CudaScope scope(*driver_, lane.context());
    DLROVER_TRY(scope.status());
    auto captured = being_captured(*driver_, stream);
    if (!captured) return captured.take_status();
    if (*captured)
        return Status(Code::invalid_argument,
                      "the stream is being captured into a CUDA graph: save outside of the capture");
    DLROVER_TRY(lane.begin_behind(stream));
    for (const CudaCopy &copy : copies) DLROVER_TRY(lane.begin(copy, pinned));
    return lane.end_run();
}

Status CudaStage::copy(std::span<const CudaCopy> copies, void *stream, const SaveTarget &target) {
    if (copies.empty()) return {};
    std::lock_guard lock(mutex_);
    DLROVER_TRY(failed());
    auto lane = lane_of(copies);
    if (!lane) return lane.take_status();
    return note(copy_in(**lane, copies, static_cast<cuda::Stream>(stream), pinned(target, **lane)));
}

Status CudaStage::failed() const {
    return failure_ == Code::ok ? Status() : Status(failure_, failure_text_);
}

Status CudaStage::note(Status status) {
    if (!status.ok() && failure_ == Code::ok) {
        failure_ = status.code();
        failure_text_ = status.message();
    }
    return status;
}

Status CudaStage::pump() {
    for (const auto &lane : lanes_) {
        if (!lane->busy()) continue;
        CudaScope scope(*driver_, lane->context());
        DLROVER_TRY(scope.status());
        DLROVER_TRY(lane->pump());
    }
    return {};
}

Status CudaStage::wait() {
    std::unique_lock lock(mutex_);
    DLROVER_TRY(failed());
    DLROVER_TRY(note(pump()));
    std::vector<CudaLane *> busy;
    for (const auto &lane : lanes_)
        if (lane->busy()) busy.push_back(lane.get());
    lock.unlock();  // so that another thread's fence() does not wait here
    for (CudaLane *lane : busy) {
        CudaScope scope(*driver_, lane->context());
        Status waited = scope.status();
        if (waited.ok())
            waited = driver_->check(driver_->cuEventSynchronize(lane->done()), "copying from the GPU failed");
        if (waited.ok()) continue;
        lock.lock();
        return note(std::move(waited));
    }
    return {};
}

Status CudaStage::fence(void *stream) {
    std::unique_lock lock(mutex_);
    DLROVER_TRY(failed());
    DLROVER_TRY(note(pump()));
    auto handle = static_cast<cuda::Stream>(stream);
    for (const auto &lane : lanes_) {
        if (!lane->busy()) continue;
        CudaScope scope(*driver_, lane->context());
        DLROVER_TRY(scope.status());
        auto captured = being_captured(*driver_, handle);
        if (!captured) return captured.take_status();
        // What is captured may run at any time, and more than once: the copies have to be made now.
        auto result = *captured ? driver_->cuEventSynchronize(lane->done())
                                : driver_->cuStreamWaitEvent(handle, lane->done(), 0);
        DLROVER_TRY(note(driver_->check(result, "waiting for copies from the GPU failed")));
    }
    return {};
}

void CudaStage::end() {
    std::lock_guard lock(mutex_);
    for (const auto &lane : lanes_) {
        if (!lane->busy()) continue;
        CudaScope scope(*driver_, lane->context());
        lane->stop();
    }
    failure_ = Code::ok;
    failure_text_.clear();
}

}  // namespace dlrover::lib
