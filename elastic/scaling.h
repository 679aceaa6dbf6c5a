// SPDX-License-Identifier: Apache-2.0
// How many nodes a person wants in the world (dlrover scale), and which of them go. Pure.
#pragma once

#include <vector>

#include "elastic/types.h"

namespace dlrover::elastic {

/// Takes over what `other` knows more. True: that was news.
bool merge(Scaling &mine, const Scaling &other);

/// So many of `nodes`, in their order. Those that joined last go first, then the highest numbered; those of
/// `last_to_go` when no other is left.
std::vector<NodeIndex> stay(const std::vector<NodeIndex> &nodes, std::size_t size,
                            const std::vector<NodeIndex> &last_to_go);

}  // namespace dlrover::elastic
