// SPDX-License-Identifier: Apache-2.0
// PMIx_Allocation_request: more nodes, or fewer.
#pragma once

#include <cstdint>
#include <span>

#include "pmix_server/pmix_api.h"
#include "proto/local_codec.h"

namespace dlrover::pmix {

/// One of them is 0.
struct Allocation {
    std::uint32_t more = 0, fewer = 0;
};

/// PMIX_SUCCESS: it is in `out`. PMIX_ERR_NOT_SUPPORTED: it is about something else than a number of nodes.
pmix_status_t parse_allocation(pmix_alloc_directive_t directive, std::span<const pmix_info_t> infos,
                               Allocation &out);

/// The group's answer.
pmix_status_t allocation_status(proto::local::ScaleState state, const Allocation &asked);

}  // namespace dlrover::pmix
