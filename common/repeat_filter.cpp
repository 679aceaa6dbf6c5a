// SPDX-License-Identifier: Apache-2.0
#include "common/repeat_filter.h"

#include <functional>
#include <string>
#include <utility>

namespace dlrover::log {

void RepeatFilter::enter_window(Seen &seen, Time now) const {
    if (seen.passed != 0 && now - seen.window_start < limits_.window) return;
    seen.window_start = now;
    seen.passed = 0;
}

RepeatFilter::Seen &RepeatFilter::find(std::unordered_map<std::uint64_t, Seen> &known, std::string_view text,
                                       Time now) const {
    if (known.size() >= limits_.known_texts) known.clear();
    Seen &seen = known[std::hash<std::string_view>{}(text)];
    enter_window(seen, now);
    return seen;
}

RepeatFilter::Verdict RepeatFilter::admit(std::string_view job, std::string_view text, Time now) {
    Seen &same = find(texts_, std::string(job).append(text), now);
    Seen &all = job.empty() ? others_ : of_jobs_;
    Seen &its = job.empty() ? others_ : find(jobs_, job, now);
    enter_window(all, now);
    unsigned its_lines = job.empty() ? limits_.all_lines : limits_.job_lines;
    if (same.passed >= limits_.same_lines || its.passed >= its_lines || all.passed >= limits_.all_lines) {
        ++same.held_back;
        return {.pass = false};
    }
    ++same.passed;
    ++all.passed;
    if (!job.empty()) ++its.passed;
    return {.pass = true,
            .held_back = std::exchange(same.held_back, 0),
            .last = same.passed == limits_.same_lines || its.passed == its_lines ||
                    all.passed == limits_.all_lines};
}

}  // namespace dlrover::log
