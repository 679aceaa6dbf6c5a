// SPDX-License-Identifier: Apache-2.0
// `dlrover scale JOB N`: a running group gets a world of another size. Asks, waits, and prints.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "proto/local_codec.h"

namespace dlrover::cli {

/// reply: of the job. wait: returns when the world has so many nodes; timeout: it has not after a while,
/// which does not take the word back.
Status scale_job(const proto::local::StatusReplyT &reply, std::uint32_t nodes, bool wait);

}  // namespace dlrover::cli
