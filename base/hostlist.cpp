// SPDX-License-Identifier: Apache-2.0
#include "base/hostlist.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>

namespace dlrover {
namespace {

constexpr std::size_t max_digits = 18;
constexpr std::size_t max_brackets = 8;

struct Range {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
    std::size_t width = 0;
};

/// One element of the list: literal texts with ranges between them.
struct Pattern {
    std::vector<std::string_view> literals;
    std::vector<std::vector<Range>> ranges;
};

Status not_a_list(std::string_view text) {
    constexpr std::size_t shown = 80;
    return Status(Code::invalid_argument,
                  "\"" + std::string(text.substr(0, shown)) + "\" is not a list of host names");
}

bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

bool is_name_char(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '.' ||
           c == '_';
}

std::optional<std::uint64_t> parse_number(std::string_view text) {
    if (text.empty() || text.size() > max_digits || !std::all_of(text.begin(), text.end(), is_digit))
        return {};
    std::uint64_t value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
}

std::string format_number(std::uint64_t value, std::size_t width) {
    std::string digits = std::to_string(value);
    return digits.size() < width ? std::string(width - digits.size(), '0') + digits : digits;
}

std::optional<Range> parse_range(std::string_view text) {
    std::size_t dash = text.find('-');
    std::string_view first = text.substr(0, dash);
    auto low = parse_number(first);
    auto high = dash == std::string_view::npos ? low : parse_number(text.substr(dash + 1));
    if (!low || !high || *high < *low) return {};
    return Range{*low, *high, first.size()};
}

/// "1-3,7" between two brackets.
bool parse_ranges(std::string_view text, std::size_t limit, std::vector<Range> &ranges) {
    while (true) {
        std::size_t comma = text.find(',');
        auto range = parse_range(text.substr(0, comma));
        if (!range || ranges.size() >= limit) return false;
        ranges.push_back(*range);
        if (comma == std::string_view::npos) return true;
        text.remove_prefix(comma + 1);
    }
}

std::optional<Pattern> parse_pattern(std::string_view text, std::size_t limit) {
    Pattern pattern;
    while (true) {
        std::size_t open = text.find('[');
        std::string_view literal = text.substr(0, open);
        if (!std::all_of(literal.begin(), literal.end(), is_name_char)) return {};
        pattern.literals.push_back(literal);
        if (open == std::string_view::npos) break;
        std::size_t close = text.find(']', open);
        if (close == std::string_view::npos || pattern.ranges.size() >= max_brackets) return {};
        std::vector<Range> ranges;
        if (!parse_ranges(text.substr(open + 1, close - open - 1), limit, ranges)) return {};
        pattern.ranges.push_back(std::move(ranges));
        text.remove_prefix(close + 1);
    }
    if (pattern.ranges.empty() && pattern.literals.front().empty()) return {};
    return pattern;
}

/// How many names the pattern stands for, or limit + 1 when they are more than the limit.
std::size_t count_names(const Pattern &pattern, std::size_t limit) {
    std::size_t total = 1;
    for (const auto &ranges : pattern.ranges) {
        std::size_t here = 0;
        for (const Range &r : ranges) {
            if (r.high - r.low >= limit) return limit + 1;
            here += static_cast<std::size_t>(r.high - r.low) + 1;
            if (here > limit) return limit + 1;
        }
        total *= here;
        if (total > limit) return limit + 1;
    }
    return total;
}

/// Known before anything is expanded: 65536 names of a long literal would fill the memory.
std::size_t longest_name(const Pattern &pattern) {
    std::size_t bytes = 0;
    for (std::string_view literal : pattern.literals) bytes += literal.size();
    for (const auto &ranges : pattern.ranges) {
        std::size_t digits = 0;
        for (const Range &r : ranges) digits = std::max({digits, r.width, std::to_string(r.high).size()});
        bytes += digits;
    }
    return bytes;
}

/// Appends every name of the pattern, the last bracket running fastest.
void append_names(const Pattern &pattern, std::size_t level, const std::string &prefix,
                  std::vector<std::string> &names) {
    std::string head = prefix + std::string(pattern.literals[level]);
    if (level == pattern.ranges.size()) {
        names.push_back(std::move(head));
        return;
    }
    for (const Range &r : pattern.ranges[level])
        for (std::uint64_t n = r.low; n <= r.high; ++n)
            append_names(pattern, level + 1, head + format_number(n, r.width), names);
}

/// Position of the comma that ends the first element; commas inside brackets do not count.
std::size_t end_of_element(std::string_view text) {
    bool inside = false;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '[') inside = true;
        if (text[i] == ']') inside = false;
        if (text[i] == ',' && !inside) return i;
    }
    return text.size();
}

Status append_element(std::string_view element, std::size_t limit, std::vector<std::string> &names) {
    auto pattern = parse_pattern(element, limit);
    if (!pattern) return not_a_list(element);
    if (longest_name(*pattern) > max_host_name_bytes) return not_a_list(element);
    if (count_names(*pattern, limit) > limit - names.size())
        return Status(Code::resource_exhausted,
                      "the list names more than " + std::to_string(limit) + " hosts");
    append_names(*pattern, 0, "", names);
    return {};
}

/// A name cut before its trailing digits.
struct SplitName {
    std::string_view prefix;
    std::string_view digits;
};

SplitName split_name(std::string_view name) {
    std::size_t cut = name.size();
    while (cut > 0 && is_digit(name[cut - 1]) && name.size() - cut < max_digits) --cut;
    return {name.substr(0, cut), name.substr(cut)};
}

/// How many names from the first on differ only by a number that counts up by one.
std::size_t run_length(std::span<const std::string> names) {
    SplitName first = split_name(names.front());
    auto number = parse_number(first.digits);
    std::size_t length = 1;
    while (number && length < names.size()) {
        SplitName next = split_name(names[length]);
        if (next.prefix != first.prefix ||
            next.digits != format_number(*number + length, first.digits.size()))
            break;
        ++length;
    }
    return length;
}

}  // namespace

Result<std::vector<std::string>> expand_hostlist(std::string_view text, std::size_t limit) {
    std::vector<std::string> names;
    if (text.empty()) return names;
    while (true) {
        std::size_t end = end_of_element(text);
        DLROVER_TRY(append_element(text.substr(0, end), limit, names));
        if (end == text.size()) return names;
        text.remove_prefix(end + 1);
    }
}

std::string compress_hostlist(std::span<const std::string> names) {
    std::string text;
    while (!names.empty()) {
        // Runs of one prefix share a bracket: n1,n2,n5 -> n[1-2,5].
        SplitName head = split_name(names.front());
        std::string ranges;
        std::size_t taken = 0;
        while (taken < names.size()) {
            SplitName name = split_name(names[taken]);
            if (name.prefix != head.prefix || name.digits.empty()) break;
            std::size_t run = run_length(names.subspan(taken));
            ranges += (ranges.empty() ? "" : ",") + std::string(name.digits);
            if (run > 1) ranges += "-" + std::string(split_name(names[taken + run - 1]).digits);
            taken += run;
        }
        if (!text.empty()) text += ",";
        if (taken <= 1)
            text += names.front();
        else
            text += std::string(head.prefix) + "[" + ranges + "]";
        names = names.subspan(std::max<std::size_t>(taken, 1));
    }
    return text;
}

}  // namespace dlrover
