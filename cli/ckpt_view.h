// SPDX-License-Identifier: Apache-2.0
// One checkpoint, opened: all ranks' tables, and the global tensors that their chunks make up.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/checkpoint_folder.h"
#include "ckpt/index_plan.h"

namespace dlrover::cli {

struct CheckpointView {
    ckpt::Manifest manifest;
    bool suspect = false;
    std::vector<ckpt::StorageFile> files;  ///< by rank
    ckpt::IndexPlan plan;

    ckpt::ChunkInfo chunk(const ckpt::ChunkRef &ref) const {
        return files[ref.rank.value()].table().chunk(ref.index);
    }
    std::uint64_t file_bytes() const;
};

/// Opens every rank's file and compares it with the manifest. Holds all tables in memory and a descriptor for
/// each rank.
Result<CheckpointView> open_checkpoint(const std::string &lineage_folder, ckpt::Manifest manifest,
                                       bool suspect);

std::uint64_t tensor_bytes(const ckpt::GlobalTensor &tensor);

std::string checkpoint_text(const CheckpointView &view, std::int64_t written_s, std::int64_t now_s);
std::string checkpoint_json(const CheckpointView &view, std::int64_t written_s);

}  // namespace dlrover::cli
