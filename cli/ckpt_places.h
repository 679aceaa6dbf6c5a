// SPDX-License-Identifier: Apache-2.0
// Finds the checkpoints that a folder on the command line stands for. Blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "ckpt/checkpoint_folder.h"

namespace dlrover::cli {

struct LineageFolder {
    std::string path;
    ckpt::CheckpointListing listing;
};

struct Place {
    std::vector<LineageFolder> lineages;   ///< at least one, by name
    std::optional<ckpt::CheckpointId> id;  ///< the folder was that of this checkpoint alone
};

/// `folder`: that above the lineages' folders, one lineage's, or one checkpoint's. not_found: nothing of ours
/// is there.
Result<Place> find_place(const std::string &folder);
/// The same where only one lineage will do. invalid_argument: there are several; the sentence names them.
Result<Place> find_one_lineage(const std::string &folder);

struct ChosenCheckpoint {
    ckpt::Manifest manifest;
    bool suspect = false;
    std::vector<Status> passed_over;  ///< newer ones that are not whole
};
/// Of the first lineage: the checkpoint that the folder names, or the newest of `step`, or the newest that is
/// whole.
Result<ChosenCheckpoint> choose_checkpoint(const Place &place, std::optional<std::uint64_t> step);

/// The newest of a step; none: there is none.
std::optional<ckpt::CheckpointId> newest_of_step(const std::vector<ckpt::CheckpointId> &newest_first,
                                                 std::uint64_t step);

}  // namespace dlrover::cli
