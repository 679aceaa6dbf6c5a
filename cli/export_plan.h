// SPDX-License-Identifier: Apache-2.0
// Which tensors of a checkpoint go into an exported file, and where. Pure.
#pragma once

#include <string>
#include <vector>

#include "ckpt/index_plan.h"
#include "cli/safetensors.h"

namespace dlrover::cli {

struct ExportPlan {
    std::vector<const ckpt::GlobalTensor *> tensors;  ///< in the order of their bytes
    SafeTensorsHeader header;                         ///< of the same tensors
    std::vector<std::string> own_values;   ///< meant too, but a value of each rank's own and no tensor
    std::vector<std::string> not_tensors;  ///< meant too, but bytes that stand for something else
    std::uint64_t bytes = 0;
};

/// `patterns`: as a shell matches files; none: everything. `wide`: the reader knows complex128 too.
/// not_found: nothing matches. unsupported: the format cannot hold a tensor; the sentence names it.
Result<ExportPlan> plan_export(const ckpt::IndexPlan &index, const std::vector<std::string> &patterns,
                               bool wide);

}  // namespace dlrover::cli
