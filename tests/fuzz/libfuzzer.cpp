// SPDX-License-Identifier: Apache-2.0
// Entry for libFuzzer. With DLROVER_FUZZ_SEEDS=DIR the target writes its seeds there and ends.
#include <cstdlib>
#include <fstream>
#include <string>

#include "fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    dlrover::fuzz::run({data, size});
    return 0;
}

extern "C" int LLVMFuzzerInitialize(int *, char ***) {
    const char *folder = std::getenv("DLROVER_FUZZ_SEEDS");
    if (!folder) return 0;
    int number = 0;
    for (const auto &seed : dlrover::fuzz::seeds()) {
        std::ofstream file(std::string(folder) + "/seed-" + std::to_string(number++), std::ios::binary);
        file.write(reinterpret_cast<const char *>(seed.data()), static_cast<std::streamsize>(seed.size()));
        if (!file.flush()) std::exit(1);
    }
    std::exit(0);
}
