// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "local_types.h"

namespace dlrover::proto {

/// Of the time so far, the share in steps that training went on from; none: no step is counted yet.
inline std::optional<double> goodput_share(const local::GoodputT &goodput) {
    if (goodput.wall_us <= 0 || goodput.steps == 0) return std::nullopt;
    return static_cast<double>(goodput.productive_us) / static_cast<double>(goodput.wall_us);
}

}  // namespace dlrover::proto
