// SPDX-License-Identifier: Apache-2.0
// PMIx_Allocation_request: more nodes of the group, or fewer; or nodes beside them, in a job of their own.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "pmix_server/info_list.h"
#include "pmix_server/pmix_api.h"
#include "proto/allocation_words.h"
#include "proto/local_codec.h"

namespace dlrover::pmix {

struct Allocation {
    /// Of the group. One of them is 0, both where there is an order.
    std::uint32_t more = 0, fewer = 0;
    /// For Slurm; it lacks whose ranks ask.
    std::optional<proto::AllocationOrder> order = {};
};

/// PMIX_SUCCESS: it is in `out`. PMIX_ERR_NOT_SUPPORTED: it is about something else.
pmix_status_t parse_allocation(pmix_alloc_directive_t directive, std::span<const pmix_info_t> infos,
                               Allocation &out);

/// The group's answer.
pmix_status_t allocation_status(proto::local::ScaleState state, const Allocation &asked);

/// PMIX_SUCCESS: it asks how an allocation is (the order is in `out`), or for nothing of the kind (none is).
/// That goes alone: PMIX_ERR_NOT_SUPPORTED. PMIX_ERR_BAD_PARAM: of which one is not said.
pmix_status_t parse_status_query(std::span<const pmix_query_t> queries,
                                 std::optional<proto::AllocationOrder> &out);

/// Of what Slurm was asked for, and it has not given.
pmix_status_t refusal_status(Code code);

/// What a rank is told of it.
InfoList answer_of(const proto::AllocationOrder &order, const proto::AllocationState &state);

}  // namespace dlrover::pmix
