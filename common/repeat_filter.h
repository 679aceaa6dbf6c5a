// SPDX-License-Identifier: Apache-2.0
// Bounds the log: one sentence said again and again, and all sentences together. Pure; time is an argument.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>
#include <unordered_map>

namespace dlrover::log {

class RepeatFilter {
  public:
    using Time = std::chrono::microseconds;
    struct Limits {
        unsigned same_lines = 10;    ///< of one text in a window
        unsigned all_lines = 2000;   ///< of any text in a window
        unsigned known_texts = 512;  ///< remembered; when full, all are forgotten
        Time window = std::chrono::seconds(60);
    };
    struct Verdict {
        bool pass = true;
        std::uint64_t held_back = 0;  ///< lines of this text held back before this one: to be said with it
        bool last = false;            ///< the last one to pass in this window
    };

    RepeatFilter() = default;
    explicit RepeatFilter(Limits limits) : limits_(limits) {}
    Verdict admit(std::string_view text, Time now);

  private:
    struct Seen {
        Time window_start{};
        unsigned passed = 0;
        std::uint64_t held_back = 0;
    };
    void enter_window(Seen &seen, Time now) const;
    Limits limits_;
    Seen total_;
    std::unordered_map<std::uint64_t, Seen> texts_;  ///< by hash of the text
};

}  // namespace dlrover::log
