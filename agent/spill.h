// SPDX-License-Identifier: Apache-2.0
// Where output of one rank's stream goes while nobody reads ours.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/unique_fd.h"

namespace dlrover::agent {

/// A file made when it is first needed: in `folder`, or where that is not possible in /tmp. Bounded; what
/// does not fit is counted and dropped. Never follows a link and never writes to another user's file.
class SpillFile {
  public:
    static constexpr std::uint64_t default_limit_bytes = std::uint64_t{1} << 30;
    SpillFile(std::string folder, std::string name, std::uint64_t limit_bytes = default_limit_bytes)
        : folder_(std::move(folder)), name_(std::move(name)), limit_bytes_(limit_bytes) {}

    void append(std::string_view data);
    /// Where the file is; empty while there is none.
    const std::string &path() const noexcept { return path_; }
    std::uint64_t written_bytes() const noexcept { return written_bytes_; }
    std::uint64_t dropped_bytes() const noexcept { return dropped_bytes_; }

  private:
    bool open_in(const std::string &folder);

    std::string folder_, name_, path_;
    std::uint64_t limit_bytes_, written_bytes_ = 0, dropped_bytes_ = 0;
    UniqueFd fd_;
    bool tried_ = false;
};

}  // namespace dlrover::agent
