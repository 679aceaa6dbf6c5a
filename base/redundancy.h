// SPDX-License-Identifier: Apache-2.0
// What --dlrover-redundancy says.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/status.h"

namespace dlrover {

inline constexpr std::uint32_t max_copies = 16, min_code_data = 2, max_code_data = 32, max_code_parity = 8;

/// Each object, or a parity of it, is on so many other nodes. `data` > 0: parities, over so many objects.
struct Redundancy {
    std::uint32_t copies = 0, data = 0;
    friend bool operator==(const Redundancy &, const Redundancy &) = default;
};

/// single, partner:K, rs:K+M. invalid_argument: neither; its text says what can be given.
Result<Redundancy> parse_redundancy(std::string_view text);

}  // namespace dlrover
