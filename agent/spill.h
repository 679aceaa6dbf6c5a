// SPDX-License-Identifier: Apache-2.0
// Where output of one rank's stream goes while nobody reads ours.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "agent/file_writer.h"

namespace dlrover::agent {

/// A file made when it is first needed: in `folder`, or where that is not possible in /tmp. Bounded; what
/// does not fit is counted and dropped. Never follows a link and never writes to another user's file. Written
/// beside the loop. Thread: the loop's.
class SpillFile {
  public:
    static constexpr std::uint64_t default_limit_bytes = std::uint64_t{1} << 30;
    SpillFile(Loop &loop, const std::string &folder, const std::string &name,
              std::uint64_t limit_bytes = default_limit_bytes);

    void append(std::string_view data);
    bool is_idle() const { return writer_.is_idle(); }
    bool is_full() const { return writer_.is_full(); }
    /// Where the file is, or will be; empty where none can be made, and while none is needed.
    std::string path() const;
    std::uint64_t written_bytes() const { return taken_bytes_ - writer_.dropped_bytes(); }
    std::uint64_t dropped_bytes() const { return beyond_bytes_ + writer_.dropped_bytes(); }

  private:
    std::string wanted_path_;
    std::uint64_t limit_bytes_, taken_bytes_ = 0, beyond_bytes_ = 0;
    FileWriter writer_;
};

}  // namespace dlrover::agent
