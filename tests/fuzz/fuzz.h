// SPDX-License-Identifier: Apache-2.0
// What a fuzz target provides, and what driver.cpp (every build) and libfuzzer.cpp (--enable-fuzzing) use.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string_view>
#include <vector>

namespace dlrover::fuzz {

using Bytes = std::vector<std::uint8_t>;

/// Feeds one input. Returns whether it was accepted; must neither crash nor break the target's own promises.
bool run(std::span<const std::uint8_t> input);

/// Well-formed inputs to start from, each of which run() accepts.
std::vector<Bytes> seeds();

/// A broken promise: ends the program, so that the fuzzer keeps the input.
inline void require(bool holds, const char *what) {
    if (holds) return;
    std::fprintf(stderr, "broken promise: %s\n", what);
    std::abort();
}

inline Bytes bytes_of(std::string_view text) {
    return Bytes(text.begin(), text.end());
}
inline std::string_view text_of(std::span<const std::uint8_t> bytes) {
    return {reinterpret_cast<const char *>(bytes.data()), bytes.size()};
}

}  // namespace dlrover::fuzz
