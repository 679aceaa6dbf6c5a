// SPDX-License-Identifier: Apache-2.0
#include "mover/gpu_driver.h"

#include <dlfcn.h>

namespace dlrover::mover {

Result<GpuDriver> GpuDriver::load() {
    // Never closed: the driver has threads of its own.
    void *library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return Status(dlrover::Code::unsupported, ::dlerror());
    return from([library](const char *symbol) { return ::dlsym(library, symbol); });
}

Result<GpuDriver> GpuDriver::from(const Lookup &lookup) {
    GpuDriver driver;
    std::string missing;
    auto find = [&](auto *&out, const char *name) {
        out = reinterpret_cast<std::remove_reference_t<decltype(out)>>(lookup(name));
        if (!out && missing.empty()) missing = name;
    };
    find(driver.cuInit, "cuInit");
    find(driver.cuGetErrorName, "cuGetErrorName");
    find(driver.cuDeviceGetCount, "cuDeviceGetCount");
    find(driver.cuDeviceGet, "cuDeviceGet");
    find(driver.cuDeviceGetName, "cuDeviceGetName");
    find(driver.cuDeviceGetPCIBusId, "cuDeviceGetPCIBusId");
    find(driver.cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
    find(driver.cuCtxSetCurrent, "cuCtxSetCurrent");
    find(driver.cuCtxSynchronize, "cuCtxSynchronize");
    find(driver.cuModuleLoadData, "cuModuleLoadData");
    find(driver.cuModuleGetFunction, "cuModuleGetFunction");
    find(driver.cuMemAlloc, "cuMemAlloc_v2");  // the names behind which its 64-bit interface is
    find(driver.cuMemcpyHtoD, "cuMemcpyHtoD_v2");
    find(driver.cuMemcpyDtoH, "cuMemcpyDtoH_v2");
    find(driver.cuLaunchKernel, "cuLaunchKernel");
    if (missing.empty()) return driver;
    return Status(dlrover::Code::unsupported, "libcuda.so.1 lacks " + missing);
}

std::string GpuDriver::name_of(Code code) const {
    const char *name = nullptr;
    std::string number = std::to_string(code);
    return cuGetErrorName(code, &name) == 0 && name ? name + (" (" + number + ")") : "error " + number;
}

}  // namespace dlrover::mover
