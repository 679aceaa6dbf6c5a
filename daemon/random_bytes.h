// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/random.h>

#include <cstdint>
#include <vector>

namespace dlrover::daemon {

/// Empty: the system gives none.
inline std::vector<std::uint8_t> random_bytes(std::size_t count) {
    std::vector<std::uint8_t> bytes(count);
    if (::getrandom(bytes.data(), count, 0) != static_cast<ssize_t>(count)) bytes.clear();
    return bytes;
}

}  // namespace dlrover::daemon
