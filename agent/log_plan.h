// SPDX-License-Identifier: Apache-2.0
// dlrover-run's --redirects and --tee: which streams of which local ranks go to files.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/ids.h"
#include "base/status.h"

namespace dlrover::agent {

/// Bit 1: stdout, bit 2: stderr.
class StdMask {
  public:
    /// "0" to "3" for all ranks, or "0:1,1:2" for some.
    static Result<StdMask> parse(std::string_view text);
    unsigned of(LocalRank rank) const;
    bool any() const;

  private:
    unsigned all_ = 0;
    std::map<unsigned, unsigned> by_rank_;
};

inline constexpr unsigned std_out_bit = 1, std_err_bit = 2;

struct LogPlan {
    std::string dir;  ///< empty: nothing goes to files
    StdMask redirects, tee;
};

}  // namespace dlrover::agent
