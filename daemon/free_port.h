// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "common/settings.h"

namespace dlrover::daemon {

/// Hands out ports of a range that nobody is bound to, going round so that one is not soon given again.
class PortPicker {
  public:
    /// `start`: where to begin in the range, any number.
    PortPicker(PortRange range, std::uint32_t start);
    /// Where the whole range is taken (any user can do that): one that the kernel chooses. 0: not even that.
    std::uint16_t pick();

  private:
    PortRange range_;
    std::uint32_t next_;
    bool full_ = false;
};

}  // namespace dlrover::daemon
