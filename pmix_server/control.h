// SPDX-License-Identifier: Apache-2.0
// What a rank asks of all ranks by PMIx_Job_control.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "local_types.h"
#include "pmix_server/pmix_api.h"

namespace dlrover::pmix {

struct Control {
    bool checkpoint = false;            ///< all ranks are to save; else they begin again
    std::optional<std::uint64_t> step;  ///< from that step; none: the newest one
};

/// PMIX_ERR_NOT_SUPPORTED: something else. PMIX_ERR_BAD_PARAM: an id that is no step.
pmix_status_t parse_control(std::span<const pmix_info_t> directives, Control &out);
pmix_status_t control_status(proto::local::RollbackState state);

}  // namespace dlrover::pmix
