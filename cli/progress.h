// SPDX-License-Identifier: Apache-2.0
// How far work on bytes has come, for a person who waits.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace dlrover::cli {

/// "verify  [########        ]  50 %  1.0 GiB of 2.0 GiB, 512 MiB/s, 2.0 s left"
std::string progress_text(const std::string &what, std::uint64_t done, std::uint64_t total,
                          std::chrono::microseconds elapsed);

/// One line on stderr that is drawn again and again; nothing where stderr is no terminal. The line is gone at
/// the end. One thread at a time.
class Progress {
  public:
    Progress(std::string what, std::uint64_t total);
    ~Progress() { clear(); }
    Progress(const Progress &) = delete;
    Progress &operator=(const Progress &) = delete;

    void add(std::uint64_t bytes);
    /// Before other text goes to the terminal.
    void clear();

  private:
    using Clock = std::chrono::steady_clock;
    std::string what_;
    std::uint64_t total_, done_ = 0;
    bool terminal_, drawn_ = false;
    Clock::time_point start_, last_;
};

}  // namespace dlrover::cli
