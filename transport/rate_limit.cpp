// SPDX-License-Identifier: Apache-2.0
#include "transport/rate_limit.h"

#include <algorithm>

namespace dlrover::transport {

RateLimit::Time RateLimit::take(std::uint64_t bytes, Time now) {
    if (rate_ == 0) return now;
    std::lock_guard lock(mutex_);
    Time start = std::max(free_, now);
    std::chrono::duration<double> takes(static_cast<double>(bytes) / static_cast<double>(rate_));
    free_ = start + std::chrono::duration_cast<Time::duration>(takes);
    return start;
}

}  // namespace dlrover::transport
