// SPDX-License-Identifier: Apache-2.0
// Segments for somebody who is to read them alone.
#pragma once

#include <memory>
#include <vector>

#include "daemon/arena.h"

namespace dlrover::daemon {

/// Each time with descriptors that can not be written through.
Result<std::vector<SharedFd>> describe_read_only(const std::vector<ArenaSegment> &segments,
                                                 std::vector<std::unique_ptr<local::SlotSegmentT>> &out);

}  // namespace dlrover::daemon
