// SPDX-License-Identifier: Apache-2.0
#include "lib/cuda_driver.h"

#include <dlfcn.h>

#include <mutex>
#include <string>

namespace dlrover::lib {
namespace {

/// Fills function pointers; remembers the first that is missing.
class Symbols {
  public:
    explicit Symbols(const CudaDriver::Lookup &lookup) : lookup_(lookup) {}

    template <typename Function>
    bool optional(Function *&out, const char *name) {
        out = reinterpret_cast<Function *>(lookup_(name));
        return out != nullptr;
    }
    template <typename Function>
    void needed(Function *&out, const char *name) {
        if (!optional(out, name) && missing_.empty()) missing_ = name;
    }
    const std::string &missing() const noexcept { return missing_; }

  private:
    const CudaDriver::Lookup &lookup_;
    std::string missing_;
};

/// "_v2": the names behind which the driver keeps its 64-bit interface.
void find_needed(Symbols &symbols, CudaDriver &d) {
    symbols.needed(d.cuInit, "cuInit");
    symbols.needed(d.cuGetErrorName, "cuGetErrorName");
    symbols.needed(d.cuPointerGetAttribute, "cuPointerGetAttribute");
    symbols.needed(d.cuDeviceGet, "cuDeviceGet");
    symbols.needed(d.cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
    if (!symbols.optional(d.cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2"))
        symbols.needed(d.cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease");
    symbols.needed(d.cuCtxPushCurrent, "cuCtxPushCurrent_v2");
    symbols.needed(d.cuCtxPopCurrent, "cuCtxPopCurrent_v2");
    symbols.needed(d.cuStreamCreate, "cuStreamCreate");
    symbols.needed(d.cuStreamDestroy, "cuStreamDestroy_v2");
    symbols.needed(d.cuStreamSynchronize, "cuStreamSynchronize");
    symbols.needed(d.cuStreamWaitEvent, "cuStreamWaitEvent");
    symbols.needed(d.cuEventCreate, "cuEventCreate");
    symbols.needed(d.cuEventDestroy, "cuEventDestroy_v2");
    symbols.needed(d.cuEventRecord, "cuEventRecord");
    symbols.needed(d.cuEventSynchronize, "cuEventSynchronize");
    symbols.needed(d.cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2");
    symbols.needed(d.cuMemHostAlloc, "cuMemHostAlloc");
    symbols.needed(d.cuMemFreeHost, "cuMemFreeHost");
}

void find_optional(Symbols &symbols, CudaDriver &d) {
    symbols.optional(d.cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode");
    symbols.optional(d.cuStreamIsCapturing, "cuStreamIsCapturing");
    symbols.optional(d.cuMemcpyBatchAsync, "cuMemcpyBatchAsync");
    if (!symbols.optional(d.cuMemHostUnregister, "cuMemHostUnregister")) return;
    if (!symbols.optional(d.cuMemHostRegister, "cuMemHostRegister_v2"))
        symbols.optional(d.cuMemHostRegister, "cuMemHostRegister");
}

Result<std::shared_ptr<const CudaDriver>> load_once() {
    // Never closed: the driver has threads of its own.
    void *library = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr)
        return Status(Code::unsupported, "memory of a GPU needs NVIDIA's driver library on this node: " +
                                             std::string(::dlerror()));
    return CudaDriver::from([library](const char *symbol) { return ::dlsym(library, symbol); });
}

}  // namespace

Result<std::shared_ptr<const CudaDriver>> CudaDriver::from(const Lookup &lookup) {
    auto driver = std::make_shared<CudaDriver>();
    Symbols symbols(lookup);
    find_needed(symbols, *driver);
    find_optional(symbols, *driver);
    if (!symbols.missing().empty())
        return Status(Code::unsupported,
                      "libcuda.so.1 lacks " + symbols.missing() + ": it is too old for saving from a GPU");
    DLROVER_TRY(driver->check(driver->cuInit(0), "the CUDA driver does not begin"));
    return std::shared_ptr<const CudaDriver>(std::move(driver));
}

Result<std::shared_ptr<const CudaDriver>> CudaDriver::load() {
    static std::mutex mutex;
    static std::shared_ptr<const CudaDriver> loaded;
    std::lock_guard lock(mutex);
    if (loaded) return loaded;
    auto driver = load_once();
    if (driver.ok()) loaded = *driver;
    return driver;
}

Status CudaDriver::check(cuda::Result result, const char *what) const {
    if (result == cuda::success) return {};
    const char *name = nullptr;
    if (cuGetErrorName(result, &name) != cuda::success || name == nullptr) name = "an unknown error";
    return Status(Code::system,
                  std::string(what) + ": " + name + " (" + std::to_string(result) + " of the CUDA driver)");
}

CudaScope::CudaScope(const CudaDriver &driver, cuda::Context context) : driver_(driver) {
    if (driver_.cuThreadExchangeStreamCaptureMode != nullptr)
        (void)driver_.cuThreadExchangeStreamCaptureMode(&capture_mode_);
    pushed_ = driver_.cuCtxPushCurrent(context);
}

CudaScope::~CudaScope() {
    cuda::Context popped = nullptr;
    if (pushed_ == cuda::success) (void)driver_.cuCtxPopCurrent(&popped);
    if (driver_.cuThreadExchangeStreamCaptureMode != nullptr)
        (void)driver_.cuThreadExchangeStreamCaptureMode(&capture_mode_);
}

Status CudaScope::status() const {
    return driver_.check(pushed_, "the GPU's context can not be used");
}

}  // namespace dlrover::lib
