// SPDX-License-Identifier: Apache-2.0
// Where a group's checkpoints go, and what is said when they can not go there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "ckpt/retention.h"
#include "local_types.h"

namespace dlrover::writer {

struct Destination {
    std::string top;      ///< --dlrover-ckpt-dir
    std::string lineage;  ///< what of it is ours
    std::string folder;   ///< of the lineage, in `top`
    ckpt::RetentionPolicy retention;
};

/// invalid_argument: no absolute folder, or no lineage.
Result<Destination> make_destination(const proto::local::WriterWelcomeT &welcome);

/// A checkpoint as orders name it.
struct Checkpoint {
    ckpt::CheckpointId id;
    std::uint32_t world_size = 0;
};
/// invalid_argument: a part is missing, or the world is too large.
Result<Checkpoint> make_checkpoint(const proto::local::StoredCheckpointT *named);

/// The failure in words for a person, with what to do about it.
std::string in_words(const Status &failure, const Destination &to);

/// "0, 3 to 5 and 12"; at most `most` numbers or stretches. Precondition: ascending.
std::string list_numbers(const std::vector<std::uint32_t> &numbers, std::size_t most = 8);

/// Fails where this process may not write a file of `bytes` (ulimit -f). Asked before HDF5 meets the limit:
/// it does not survive a failing close undamaged.
Status check_file_limit(std::uint64_t bytes, const std::string &path);

}  // namespace dlrover::writer
