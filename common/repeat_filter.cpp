// SPDX-License-Identifier: Apache-2.0
#include "common/repeat_filter.h"

#include <functional>
#include <utility>

namespace dlrover::log {

void RepeatFilter::enter_window(Seen &seen, Time now) const {
    if (seen.passed != 0 && now - seen.window_start < limits_.window) return;
    seen.window_start = now;
    seen.passed = 0;
}

RepeatFilter::Verdict RepeatFilter::admit(std::string_view text, Time now) {
    if (texts_.size() >= limits_.known_texts) texts_.clear();
    Seen &seen = texts_[std::hash<std::string_view>{}(text)];
    enter_window(seen, now);
    enter_window(total_, now);
    if (seen.passed >= limits_.same_lines || total_.passed >= limits_.all_lines) {
        ++seen.held_back;
        return {.pass = false};
    }
    ++seen.passed;
    ++total_.passed;
    return {.pass = true,
            .held_back = std::exchange(seen.held_back, 0),
            .last = seen.passed == limits_.same_lines || total_.passed == limits_.all_lines};
}

}  // namespace dlrover::log
