// SPDX-License-Identifier: Apache-2.0
// Lists of nodes as sets: short, in an order that means something, without duplicates.
#pragma once

#include <algorithm>
#include <vector>

#include "base/ids.h"

namespace dlrover::elastic {

inline bool contains(const std::vector<NodeIndex> &nodes, NodeIndex node) {
    return std::find(nodes.begin(), nodes.end(), node) != nodes.end();
}
/// True when something was added.
inline bool add_all(std::vector<NodeIndex> &to, const std::vector<NodeIndex> &nodes) {
    bool added = false;
    for (NodeIndex n : nodes) {
        if (contains(to, n)) continue;
        to.push_back(n);
        added = true;
    }
    return added;
}

}  // namespace dlrover::elastic
