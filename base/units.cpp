// SPDX-License-Identifier: Apache-2.0
#include "base/units.h"

#include <charconv>
#include <cmath>
#include <cstdio>

namespace dlrover {
namespace {

struct Unit {
    std::string_view name;
    double factor;
};

constexpr Unit duration_units[] = {{"us", 1}, {"ms", 1e3}, {"s", 1e6}, {"min", 60e6}, {"h", 3600e6}};
constexpr double kib = 1024;
constexpr Unit size_units[] = {
    {"", 1},
    {"B", 1},
    {"K", kib},
    {"KiB", kib},
    {"M", kib *kib},
    {"MiB", kib *kib},
    {"G", kib *kib *kib},
    {"GiB", kib *kib *kib},
    {"T", kib *kib *kib *kib},
    {"TiB", kib *kib *kib *kib},
};

template <std::size_t N>
Result<double> parse_with_unit(std::string_view text, const Unit (&units)[N], double limit,
                               const char *what) {
    auto refuse = [&] {
        return Status(Code::invalid_argument, "\"" + std::string(text) + "\" is not " + what);
    };
    double number = 0;
    auto [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
    if (error != std::errc() || !(number >= 0)) return refuse();
    std::string_view suffix(end, static_cast<std::size_t>(text.data() + text.size() - end));
    for (const Unit &unit : units) {
        if (unit.name != suffix) continue;
        double value = number * unit.factor;
        if (value > limit) return refuse();
        return value;
    }
    return refuse();
}

std::string print(const char *format, double value) {
    char buffer[48];
    std::snprintf(buffer, sizeof buffer, format, value);
    return buffer;
}

}  // namespace

Result<std::chrono::microseconds> parse_duration(std::string_view text) {
    constexpr double ten_years_us = 10 * 365.25 * 24 * 3600e6;
    auto us = parse_with_unit(text, duration_units, ten_years_us, "a time such as 250ms, 2s, 5min or 1h");
    if (!us) return us.take_status();
    return std::chrono::microseconds(std::llround(*us));
}

Result<std::uint64_t> parse_size_bytes(std::string_view text) {
    constexpr double exabyte = 1024.0 * 1024 * 1024 * 1024 * 1024 * 1024;
    auto bytes = parse_with_unit(text, size_units, exabyte, "a size such as 4096, 64KiB, 4MiB or 1.5GiB");
    if (!bytes) return bytes.take_status();
    return static_cast<std::uint64_t>(std::llround(*bytes));
}

Result<std::uint64_t> parse_uint(std::string_view text, std::uint64_t low, std::uint64_t high) {
    std::uint64_t number = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    bool whole = error == std::errc() && end == text.data() + text.size() && !text.empty();
    if (!whole || number < low || number > high)
        return Status(Code::invalid_argument, "\"" + std::string(text) + "\" is not a whole number from " +
                                                  std::to_string(low) + " to " + std::to_string(high));
    return number;
}

std::string format_size_bytes(std::uint64_t bytes) {
    if (bytes < 1024) return std::to_string(bytes) + " B";
    const char *const names[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = static_cast<double>(bytes);
    int unit = -1;
    while (value >= 1024 && unit < 5) {
        value /= 1024;
        ++unit;
    }
    return print(value < 10 ? "%.1f " : "%.0f ", value) + names[unit];
}

std::string format_duration(std::chrono::microseconds duration) {
    double us = static_cast<double>(duration.count());
    if (us < 1000) return print("%.0f us", us);
    if (us < 10e3) return print("%.1f ms", us / 1e3);
    if (us < 1e6) return print("%.0f ms", us / 1e3);
    if (us < 60e6) return print("%.1f s", us / 1e6);
    auto seconds = duration.count() / 1000000;
    if (seconds < 3600) return std::to_string(seconds / 60) + " min " + std::to_string(seconds % 60) + " s";
    return std::to_string(seconds / 3600) + " h " + std::to_string(seconds / 60 % 60) + " min";
}

}  // namespace dlrover
