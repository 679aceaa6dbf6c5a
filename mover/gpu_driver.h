// SPDX-License-Identifier: Apache-2.0
// What the work of gpu_work.h needs of NVIDIA's driver library, found at run time: nothing is linked, and
// none of its headers is needed. Types and numbers are those of its published binary interface (Linux, 64
// bit).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"

namespace dlrover::mover {

struct GpuDriver {
    using Code = int;  ///< CUresult; 0 is success
    using Pointer = std::uint64_t;
    using Handle = void *;  ///< of a context, a module, a function, a stream
    using Lookup = std::function<void *(const char *symbol)>;

    /// libcuda.so.1 by the loader's rules. unsupported: it is not there, or lacks a function.
    static Result<GpuDriver> load();
    /// What load() does with a library's symbols.
    static Result<GpuDriver> from(const Lookup &lookup);

    /// The driver's name of an error.
    std::string name_of(Code code) const;

    // Members carry the driver's own names.
    Code (*cuInit)(unsigned) = nullptr;
    Code (*cuGetErrorName)(Code, const char **) = nullptr;
    Code (*cuDeviceGetCount)(int *) = nullptr;
    Code (*cuDeviceGet)(int *, int) = nullptr;
    Code (*cuDeviceGetName)(char *, int, int) = nullptr;
    Code (*cuDeviceGetPCIBusId)(char *, int, int) = nullptr;
    Code (*cuDevicePrimaryCtxRetain)(Handle *, int) = nullptr;
    Code (*cuCtxSetCurrent)(Handle) = nullptr;
    Code (*cuCtxSynchronize)() = nullptr;
    Code (*cuModuleLoadData)(Handle *, const void *) = nullptr;
    Code (*cuModuleGetFunction)(Handle *, Handle, const char *) = nullptr;
    Code (*cuMemAlloc)(Pointer *, std::size_t) = nullptr;
    Code (*cuMemcpyHtoD)(Pointer, const void *, std::size_t) = nullptr;
    Code (*cuMemcpyDtoH)(void *, Pointer, std::size_t) = nullptr;
    Code (*cuLaunchKernel)(Handle function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                           unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                           Handle stream, void **arguments, void **extra) = nullptr;
};

}  // namespace dlrover::mover
