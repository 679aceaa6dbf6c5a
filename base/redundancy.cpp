// SPDX-License-Identifier: Apache-2.0
#include "base/redundancy.h"

#include <string>

#include "base/units.h"

namespace dlrover {
namespace {

std::string range(std::uint32_t low, std::uint32_t high) {
    return " from " + std::to_string(low) + " to " + std::to_string(high);
}

}  // namespace

Result<Redundancy> parse_redundancy(std::string_view text) {
    constexpr std::string_view partner = "partner:", reed_solomon = "rs:";
    Status wrong(Code::invalid_argument, "give single, partner:K (K" + range(1, max_copies) +
                                             ") or rs:K+M (K" + range(min_code_data, max_code_data) + ", M" +
                                             range(1, max_code_parity) + ")");
    if (text == "single") return Redundancy{};
    if (text.starts_with(partner)) {
        auto copies = parse_uint(text.substr(partner.size()), 1, max_copies);
        if (copies.ok()) return Redundancy{static_cast<std::uint32_t>(*copies), 0};
    }
    std::size_t plus = text.find('+');
    if (!text.starts_with(reed_solomon) || plus == std::string_view::npos || plus < reed_solomon.size())
        return wrong;
    auto data = parse_uint(text.substr(reed_solomon.size(), plus - reed_solomon.size()), min_code_data,
                           max_code_data);
    auto parity = parse_uint(text.substr(plus + 1), 1, max_code_parity);
    if (!data.ok() || !parity.ok()) return wrong;
    return Redundancy{static_cast<std::uint32_t>(*parity), static_cast<std::uint32_t>(*data)};
}

}  // namespace dlrover
