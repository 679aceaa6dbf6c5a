// SPDX-License-Identifier: Apache-2.0
#include "spank_plugin/tasks_per_node.h"

#include "base/units.h"

namespace dlrover::spank {
namespace {

struct Repeat {
    std::uint16_t tasks;
    std::size_t times;
};

/// "2" or "2(x3)"; times is at most `limit`.
Result<Repeat> parse_repeat(std::string_view text, std::size_t limit) {
    std::size_t open = text.find("(x");
    std::uint64_t times = 1;
    if (open != std::string_view::npos) {
        if (!text.ends_with(')')) return Status(Code::invalid_argument, "bracket missing");
        auto parsed = parse_uint(text.substr(open + 2, text.size() - open - 3), 1, limit);
        if (!parsed) return parsed.take_status();
        times = *parsed;
    }
    auto tasks = parse_uint(text.substr(0, open), 1, UINT16_MAX);
    if (!tasks) return tasks.take_status();
    return Repeat{static_cast<std::uint16_t>(*tasks), static_cast<std::size_t>(times)};
}

}  // namespace

Result<std::vector<std::uint16_t>> parse_tasks_per_node(std::string_view text, std::size_t nodes) {
    Status wrong(Code::invalid_argument, "the numbers of tasks per node do not match the step's nodes");
    std::vector<std::uint16_t> counts;
    while (counts.size() < nodes) {
        std::string_view field = text.substr(0, text.find(','));
        auto repeat = parse_repeat(field, nodes - counts.size());
        if (!repeat) return wrong;
        counts.insert(counts.end(), repeat->times, repeat->tasks);
        bool last = field.size() == text.size();
        if (last != (counts.size() == nodes)) return wrong;
        if (!last) text.remove_prefix(field.size() + 1);
    }
    if (nodes == 0) return wrong;
    return counts;
}

}  // namespace dlrover::spank
