// SPDX-License-Identifier: Apache-2.0
// What the kernel says of one mapping of this process.
#pragma once

#include <cctype>
#include <cstdint>
#include <fstream>
#include <string>

namespace dlrover::test {

/// Of the mapping that begins there; `line` as /proc/self/smaps names it ("Rss"). 0: no such mapping or line.
inline std::uint64_t smaps_bytes(const void *begin, const std::string &line) {
    std::ifstream smaps("/proc/self/smaps");
    bool here = false;
    for (std::string text; std::getline(smaps, text);) {
        if (text.find('-') != std::string::npos && std::isxdigit(static_cast<unsigned char>(text[0])))
            here = std::stoull(text, nullptr, 16) == reinterpret_cast<std::uintptr_t>(begin);
        if (here && text.starts_with(line + ":")) return std::stoull(text.substr(line.size() + 1)) * 1024;
    }
    return 0;
}

}  // namespace dlrover::test
