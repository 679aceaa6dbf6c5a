// SPDX-License-Identifier: Apache-2.0
// NVIDIA's driver library, found at run time: nothing is linked and none of its headers is needed. Types and
// numbers are those of its published binary interface (Linux, 64 bit).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/status.h"

namespace dlrover::lib {

namespace cuda {

using Result = int;  ///< CUresult
using Device = int;  ///< CUdevice
using Pointer = std::uint64_t;
struct ContextObject;
struct StreamObject;
struct EventObject;
using Context = ContextObject *;
using Stream = StreamObject *;
using Event = EventObject *;

inline constexpr Result success = 0, stream_capture_implicit = 906;
// CUpointer_attribute and CUmemorytype
inline constexpr int attribute_context = 1, attribute_memory_type = 2, attribute_device_ordinal = 9;
inline constexpr unsigned memory_type_device = 2;
// Flags of streams, events and host memory
inline constexpr unsigned stream_non_blocking = 1;
inline constexpr unsigned event_blocking_sync = 1, event_disable_timing = 2;
inline constexpr unsigned host_portable = 1;
// CUstreamCaptureMode and CUstreamCaptureStatus
inline constexpr int capture_mode_relaxed = 2;
inline constexpr int capture_status_none = 0;
// CUmemcpySrcAccessOrder
inline constexpr int source_in_stream_order = 1;

/// CUmemLocation and CUmemcpyAttributes; a location of zeros says nothing.
struct Location {
    int type = 0, id = 0;
};
struct CopyAttributes {
    int source_order = source_in_stream_order;
    Location from, to;
    unsigned flags = 0;
};

}  // namespace cuda

/// The functions that are used. Members carry the driver's own names.
struct CudaDriver {
    using Lookup = std::function<void *(const char *symbol)>;

    /// libcuda.so.1 by the loader's rules; loaded once per process. unsupported: it is not there, refuses to
    /// begin, or lacks a function that is needed: the text says which.
    static Result<std::shared_ptr<const CudaDriver>> load();
    /// What load() does with a library's symbols.
    static Result<std::shared_ptr<const CudaDriver>> from(const Lookup &lookup);

    /// "what: CUDA_ERROR_NAME"; ok for success.
    Status check(cuda::Result result, const char *what) const;

    cuda::Result (*cuInit)(unsigned) = nullptr;
    cuda::Result (*cuGetErrorName)(cuda::Result, const char **) = nullptr;
    cuda::Result (*cuPointerGetAttribute)(void *, int, cuda::Pointer) = nullptr;
    cuda::Result (*cuDeviceGet)(cuda::Device *, int) = nullptr;
    cuda::Result (*cuDevicePrimaryCtxRetain)(cuda::Context *, cuda::Device) = nullptr;
    cuda::Result (*cuDevicePrimaryCtxRelease)(cuda::Device) = nullptr;
    cuda::Result (*cuCtxPushCurrent)(cuda::Context) = nullptr;
    cuda::Result (*cuCtxPopCurrent)(cuda::Context *) = nullptr;
    cuda::Result (*cuStreamCreate)(cuda::Stream *, unsigned) = nullptr;
    cuda::Result (*cuStreamDestroy)(cuda::Stream) = nullptr;
    cuda::Result (*cuStreamSynchronize)(cuda::Stream) = nullptr;
    cuda::Result (*cuStreamWaitEvent)(cuda::Stream, cuda::Event, unsigned) = nullptr;
    cuda::Result (*cuEventCreate)(cuda::Event *, unsigned) = nullptr;
    cuda::Result (*cuEventDestroy)(cuda::Event) = nullptr;
    cuda::Result (*cuEventRecord)(cuda::Event, cuda::Stream) = nullptr;
    cuda::Result (*cuEventSynchronize)(cuda::Event) = nullptr;
    cuda::Result (*cuMemcpyDtoHAsync)(void *, cuda::Pointer, std::size_t, cuda::Stream) = nullptr;
    cuda::Result (*cuMemHostAlloc)(void **, std::size_t, unsigned) = nullptr;
    cuda::Result (*cuMemFreeHost)(void *) = nullptr;

    // May be missing: drivers before CUDA 10.1 have no capture modes, those before 10.0 no capture.
    cuda::Result (*cuThreadExchangeStreamCaptureMode)(int *) = nullptr;
    cuda::Result (*cuStreamIsCapturing)(cuda::Stream, int *) = nullptr;
    // Of drivers from CUDA 12.8 on.
    cuda::Result (*cuMemcpyBatchAsync)(cuda::Pointer *to, cuda::Pointer *from, std::size_t *bytes,
                                       std::size_t count, cuda::CopyAttributes *,
                                       std::size_t *first_with_attributes, std::size_t attributes,
                                       std::size_t *failed, cuda::Stream) = nullptr;
    // Both or none: then only the pinned ring is used.
    cuda::Result (*cuMemHostRegister)(void *, std::size_t, unsigned) = nullptr;
    cuda::Result (*cuMemHostUnregister)(void *) = nullptr;
};

/// While it lives the context is current in this thread, and what this thread calls neither disturbs nor
/// joins a capture into a CUDA graph.
class CudaScope {
  public:
    CudaScope(const CudaDriver &driver, cuda::Context context);
    ~CudaScope();
    CudaScope(const CudaScope &) = delete;
    CudaScope &operator=(const CudaScope &) = delete;
    /// Whether the context could be made current.
    Status status() const;

  private:
    const CudaDriver &driver_;
    int capture_mode_ = cuda::capture_mode_relaxed;
    cuda::Result pushed_;
};

}  // namespace dlrover::lib
