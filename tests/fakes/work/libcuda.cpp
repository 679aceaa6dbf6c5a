// SPDX-License-Identifier: Apache-2.0
// A CUDA driver for dlrover-gpu-check, whose devices are the words of FAKE_GPUS, parted by commas: sound;
// wrong (one entry of a product is), "a little" (by a fraction), lazy (nothing is done); hang (its work never
// ends); ecc (an error of its memory); lost (an error that can be a broken one's only at work); busy (in
// exclusive use); slow (never ready); notready (an error before its work); gone (not there, nor those behind
// it). FAKE_CUDA_INIT: cuInit's answer, or hang. It multiplies for the one kernel that there is.
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace {

using Code = int;
constexpr Code ok = 0, no_device = 100, busy = 46, ecc = 214, unknown = 999, invalid = 1;

std::string from_environment(const char *name) {
    const char *value = std::getenv(name);
    return value ? value : "";
}

/// As they are until the first that is gone.
std::vector<std::string> devices() {
    std::vector<std::string> words;
    std::string text = from_environment("FAKE_GPUS");
    while (!text.empty()) {
        std::string word = text.substr(0, text.find(','));
        if (word == "gone") break;
        text.erase(0, word.size() + 1);
        words.push_back(word);
    }
    return words;
}

[[noreturn]] void hang() {
    for (;;) ::pause();
}

// Static, as if the library had not been loaded later: clang 14's LeakSanitizer falls over the other kind in
// threads that hang ("Tracer caught signal 11").
#define OF_THREAD [[gnu::tls_model("initial-exec")]] thread_local

OF_THREAD int current = -1;
int contexts[64];

std::string kind() {
    return devices().at(static_cast<std::size_t>(current));
}

void multiply(const float *a, const float *b, float *c, std::size_t side) {
    std::memset(c, 0, side * side * sizeof *c);
    for (std::size_t i = 0; i < side; ++i)
        for (std::size_t k = 0; k < side; ++k)
            for (std::size_t j = 0; j < side; ++j) c[i * side + j] += a[i * side + k] * b[k * side + j];
}

/// What the last launch was given: it is done when somebody reads.
OF_THREAD struct {
    const float *a, *b;
    float *c;
    std::size_t side;
} given;

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

Code cuInit(unsigned) {
    std::string answer = from_environment("FAKE_CUDA_INIT");
    if (answer == "hang") hang();
    if (!answer.empty()) return std::atoi(answer.c_str());
    return devices().empty() ? no_device : ok;
}

Code cuGetErrorName(Code code, const char **name) {
    *name = code == ecc    ? "CUDA_ERROR_ECC_UNCORRECTABLE"
            : code == busy ? "CUDA_ERROR_DEVICE_UNAVAILABLE"
                           : nullptr;
    return *name ? ok : invalid;
}

Code cuDeviceGetCount(int *count) {
    *count = static_cast<int>(devices().size());
    return ok;
}

Code cuDeviceGet(int *device, int index) {
    *device = index;
    return ok;
}

Code cuDeviceGetName(char *name, int bytes, int device) {
    bool slice = devices().at(static_cast<std::size_t>(device)) == "slice";
    std::strncpy(name, slice ? "Fake MIG 1g.5gb" : "Fake", static_cast<std::size_t>(bytes));
    return ok;
}

Code cuDeviceGetPCIBusId(char *bus, int bytes, int device) {
    std::strncpy(bus, ("0000:0" + std::to_string(device) + ":00.0").c_str(), static_cast<std::size_t>(bytes));
    return ok;
}

Code cuDevicePrimaryCtxRetain(void **context, int device) {
    contexts[device] = device;
    *context = &contexts[device];
    std::string kind = devices().at(static_cast<std::size_t>(device));
    if (kind == "slow") hang();
    return kind == "busy" ? busy : kind == "notready" ? unknown : ok;
}

Code cuCtxSetCurrent(void *context) {
    current = *static_cast<int *>(context);
    return ok;
}

Code cuCtxSynchronize() {
    if (kind() == "hang") hang();
    return kind() == "ecc" ? ecc : kind() == "lost" ? unknown : ok;
}

Code cuModuleLoadData(void **module, const void *text) {
    *module = const_cast<void *>(text);
    return std::strstr(static_cast<const char *>(text), ".entry multiply(") ? ok : invalid;
}

Code cuModuleGetFunction(void **function, void *module, const char *name) {
    *function = module;
    return std::strcmp(name, "multiply") == 0 ? ok : invalid;
}

Code cuMemAlloc_v2(std::uint64_t *pointer, std::size_t bytes) {
    static std::mutex mutex;
    static auto *all = new std::vector<std::unique_ptr<char[]>>;  // as long as the process, like a context's
    std::lock_guard lock(mutex);
    all->push_back(std::make_unique<char[]>(bytes));
    *pointer = reinterpret_cast<std::uint64_t>(all->back().get());
    return ok;
}

Code cuMemcpyHtoD_v2(std::uint64_t to, const void *from, std::size_t bytes) {
    std::memcpy(reinterpret_cast<void *>(to), from, bytes);
    return ok;
}

Code cuMemcpyDtoH_v2(void *to, std::uint64_t from, std::size_t bytes) {
    if (given.c && kind() != "lazy") multiply(given.a, given.b, given.c, given.side);
    std::memcpy(to, reinterpret_cast<const void *>(from), bytes);
    float &entry = static_cast<float *>(to)[bytes / sizeof(float) / 3];
    if (kind() == "wrong") entry += 1;
    if (kind() == "a little") entry += 0.25F;
    return ok;
}

Code cuLaunchKernel(void *, unsigned grid_x, unsigned grid_y, unsigned, unsigned block_x, unsigned, unsigned,
                    unsigned, void *, void **arguments, void **) {
    std::size_t side = *static_cast<unsigned *>(arguments[3]);
    if (grid_x * block_x != side || grid_y != side) return invalid;
    auto at = [&](int i) { return reinterpret_cast<float *>(*static_cast<std::uint64_t *>(arguments[i])); };
    given = {at(0), at(1), at(2), side};
    return ok;
}
}
#pragma GCC visibility pop
