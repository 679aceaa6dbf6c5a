// SPDX-License-Identifier: Apache-2.0
// From the segments of a message of the local protocol to what can be mapped.
#pragma once

#include <utility>
#include <vector>

#include "ckpt/mapping.h"

namespace dlrover::ckpt {

/// `segments`: pointers to proto::local::SlotSegmentT. The descriptors belong to the segments with `fd` set,
/// in order; the receiver has checked their number.
template <typename Segments>
std::vector<SegmentGrant> to_grants(const Segments &segments, std::vector<UniqueFd> fds) {
    std::vector<SegmentGrant> grants;
    std::size_t next = 0;
    for (const auto &s : segments) {
        if (!s) continue;
        SegmentGrant grant{s->id, s->bytes, {}};
        if (s->fd && next < fds.size()) grant.fd = std::move(fds[next++]);
        grants.push_back(std::move(grant));
    }
    return grants;
}

}  // namespace dlrover::ckpt
