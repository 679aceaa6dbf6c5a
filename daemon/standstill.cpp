// SPDX-License-Identifier: Apache-2.0
#include "daemon/standstill.h"

#include <fstream>
#include <utility>

#include "base/units.h"

namespace dlrover::daemon {
namespace {

/// Beyond `interval`. A leader takes a node for silent after 1.2 s.
constexpr Standstill::Time limit = std::chrono::milliseconds(500);
constexpr Standstill::Time pause = std::chrono::minutes(1);

std::string reason(Standstill::Time stood, const ThreadTime &before, const ThreadTime &now) {
    Standstill::Time ran = now.ran - before.ran, waited = now.waited - before.waited;
    if (2 * waited >= stood) return "no processor was free for it for " + format_duration(waited);
    if (2 * ran >= stood) return "it was at work for " + format_duration(ran) + " of it";
    return "it was stopped, or waited for memory or a disk, or the whole machine stood still";
}

}  // namespace

std::optional<ThreadTime> own_thread_time() {
    std::ifstream file("/proc/thread-self/schedstat");
    std::int64_t ran = 0, waited = 0;
    if (!(file >> ran >> waited)) return std::nullopt;
    using std::chrono::nanoseconds;
    auto in_us = [](std::int64_t ns) {
        return std::chrono::duration_cast<std::chrono::microseconds>(nanoseconds(ns));
    };
    return ThreadTime{in_us(ran), in_us(waited)};
}

std::optional<std::string> Standstill::look(Time now, std::optional<ThreadTime> used) {
    auto last = std::exchange(last_, Look{now, used});
    if (!last || now - last->at < interval + limit) return sum_up(now);
    Time stood = now - last->at;
    std::string text = format_duration(stood);
    if (used && last->used) text += " (" + reason(stood, *last->used, *used) + ")";
    if (!told_at_) {
        told_at_ = now;
        return "stood still for " + text;
    }
    ++untold_;
    if (stood > longest_) {
        longest_ = stood;
        longest_text_ = std::move(text);
    }
    return sum_up(now);
}

std::optional<std::string> Standstill::sum_up(Time now) {
    if (!told_at_ || now - *told_at_ < pause) return std::nullopt;
    told_at_.reset();
    longest_ = Time(0);
    auto times = std::exchange(untold_, 0);
    if (times == 0) return std::nullopt;
    told_at_ = now;
    return "stood still " + std::to_string(times) + " times more in a minute, once for " + longest_text_;
}

}  // namespace dlrover::daemon
