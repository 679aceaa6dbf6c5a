// SPDX-License-Identifier: Apache-2.0
#include "base/units.h"

#include "fuzz.h"

namespace dlrover::fuzz {

bool run(std::span<const std::uint8_t> input) {
    std::string_view text = text_of(input);
    auto duration = parse_duration(text);
    if (duration) {
        require(duration->count() >= 0, "a time is not negative");
        require(!format_duration(*duration).empty(), "a time has a text");
    }
    auto size = parse_size_bytes(text);
    if (size) require(!format_size_bytes(*size).empty(), "a size has a text");
    auto number = parse_uint(text, 5, 500);
    if (number) require(*number >= 5 && *number <= 500, "a number is in its range");
    return duration.ok() || size.ok() || number.ok();
}

std::vector<Bytes> seeds() {
    std::vector<Bytes> list;
    for (const char *text : {"250ms", "1.5h", "3us", "2min", "4096", "64KiB", "1.5GiB", "7T", "499"})
        list.push_back(bytes_of(text));
    return list;
}

}  // namespace dlrover::fuzz
