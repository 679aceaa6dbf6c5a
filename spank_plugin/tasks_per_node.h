// SPDX-License-Identifier: Apache-2.0
// SLURM_STEP_TASKS_PER_NODE: "2(x3),1" -> {2, 2, 2, 1}.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace dlrover::spank {

/// Exactly `nodes` counts from 1 to 65535; invalid_argument otherwise. The text may come from a user.
Result<std::vector<std::uint16_t>> parse_tasks_per_node(std::string_view text, std::size_t nodes);

}  // namespace dlrover::spank
