// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/status.h"

namespace dlrover::spank {

/// In srun, inside this job: returns when slurmctld or a backup of it answers, after ten minutes at the
/// latest; says that it waits. Not ok: a signal that ends srun has come meanwhile.
Status wait_for_controller(std::uint32_t job_id);

}  // namespace dlrover::spank
