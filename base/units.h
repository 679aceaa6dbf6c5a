// SPDX-License-Identifier: Apache-2.0
// Text with units is parsed here and nowhere else.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace dlrover {

/// "250ms", "2s", "5min", "1h", "1.5s"; a bare number is refused. Units: us ms s min h. Range: 0 to 10 years.
Result<std::chrono::microseconds> parse_duration(std::string_view text);

/// "4096", "64KiB", "4MiB", "1.5GiB", "2TiB"; K, M, G, T mean the same powers of 1024. Result in bytes.
Result<std::uint64_t> parse_size_bytes(std::string_view text);

/// A decimal integer in [low, high], whole text, no sign or space.
Result<std::uint64_t> parse_uint(std::string_view text, std::uint64_t low, std::uint64_t high);

/// "1.5 GiB", "312 B"
std::string format_size_bytes(std::uint64_t bytes);

/// "35 ms", "2.1 s", "3 min 20 s", "2 h 5 min"
std::string format_duration(std::chrono::microseconds duration);

}  // namespace dlrover
