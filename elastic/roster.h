// SPDX-License-Identifier: Apache-2.0
// What one member's record of the nodes that have joined becomes when it hears of another's.
#pragma once

#include "elastic/types.h"

namespace dlrover::elastic {

/// Whether leaders can have written it, for a group whose step has so many nodes.
bool could_be(const Roster &r, std::size_t step_nodes);
/// True when `mine` has changed: to the later one of both, and whatever one of them knows to be firm.
bool merge(Roster &mine, const Roster &other);

}  // namespace dlrover::elastic
