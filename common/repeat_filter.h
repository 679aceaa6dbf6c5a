// SPDX-License-Identifier: Apache-2.0
// Bounds the log: one sentence said again and again, what is said of one job, of all jobs, and all else. What
// users bring about keeps nothing out that is not about jobs. Pure; time is an argument.
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
        unsigned job_lines = 300;    ///< about one job
        unsigned all_lines = 2000;   ///< of any text about jobs, and as many about none
        unsigned known_texts = 512;  ///< remembered, and as many jobs; when full, all are forgotten
        Time window = std::chrono::seconds(60);
    };
    struct Verdict {
        bool pass = true;
        std::uint64_t held_back = 0;  ///< lines of this text held back before this one: to be said with it
        bool last = false;            ///< the last one to pass in this window
    };

    RepeatFilter() = default;
    explicit RepeatFilter(Limits limits) : limits_(limits) {}
    /// `job`: whom the text is about; empty: none.
    Verdict admit(std::string_view job, std::string_view text, Time now);

  private:
    struct Seen {
        Time window_start{};
        unsigned passed = 0;
        std::uint64_t held_back = 0;
    };
    Seen &find(std::unordered_map<std::uint64_t, Seen> &known, std::string_view text, Time now) const;
    void enter_window(Seen &seen, Time now) const;
    Limits limits_;
    Seen of_jobs_, others_;
    std::unordered_map<std::uint64_t, Seen> texts_, jobs_;  ///< by hash
};

}  // namespace dlrover::log
