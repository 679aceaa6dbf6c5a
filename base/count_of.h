// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dlrover {

/// "1 node", "3 nodes"
inline std::string count_of(std::uint64_t n, std::string_view one) {
    std::string text = std::to_string(n) + " ";
    text += one;
    return n == 1 ? text : text + "s";
}

}  // namespace dlrover
