// SPDX-License-Identifier: Apache-2.0
// What the nodes of a process group bring to its construction (docs/protocol-pmix.md, "Process groups").
// Pure.
#pragma once

#include "base/status.h"
#include "proto/frame.h"

namespace dlrover::pmix {

struct GroupPart {
    std::uint64_t context = 0;  ///< the group's number, if this node's part is the first
    proto::Bytes data;          ///< of its ranks, as PMIx packs it
};

void append_part(const GroupPart &part, proto::Bytes &out);
/// Of all nodes, one behind the other: with the first one's number. corrupt: none, or not a whole number of
/// parts.
Result<GroupPart> join_parts(std::span<const std::uint8_t> parts);

}  // namespace dlrover::pmix
