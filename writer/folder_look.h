// SPDX-License-Identifier: Apache-2.0
// What a run finds in its lineage's folder.
#pragma once

#include <string>
#include <vector>

#include "writer/destination.h"
#include "writer/term_claim.h"

namespace dlrover::writer {

/// What was saved before this generation, and after this step.
struct PassedOver {
    TrainStep after;
    GenerationId before;
    bool covers(const CheckpointId &id) const { return id.generation < before && id.step > after; }
};

/// Makes the folder, tries whether it can be written, chooses the newest whole checkpoint and claims a term.
/// Blocks. `node` is part of a temporary name. All but `order` is filled in.
proto::local::FolderFoundT look_at_folder(const Destination &to, const RunId &run, const std::string &node,
                                          const std::vector<PassedOver> &passed_over = {});

}  // namespace dlrover::writer
