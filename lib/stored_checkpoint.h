// SPDX-License-Identifier: Apache-2.0
// A checkpoint on storage opened for one rank.
#pragma once

#include <memory>

#include "lib/global_tensors.h"
#include "lib/rank_objects.h"
#include "lib/stored_object.h"

namespace dlrover::lib {

struct StoredCheckpoint {
    StoredObject object;  ///< this rank's; without chunks where a world of another size saved it
    std::unique_ptr<GlobalTensors> tensors;
    std::unique_ptr<RankObjects> objects;
};

/// corrupt: damaged; the checkpoint has been marked suspect (StoredFiles::judge).
Result<StoredCheckpoint> open_stored_checkpoint(const StoredRequest &request, bool verify_parts);

/// The request for a checkpoint named by its place: a lineage's folder (then the newest complete one), or the
/// folder of one of its checkpoints. not_found: there is none.
Result<StoredRequest> find_stored_checkpoint(const std::string &folder);
/// The same without an object of this rank, whoever saved it.
Result<StoredCheckpoint> open_stored_tensors(const StoredRequest &request, bool verify_parts);

}  // namespace dlrover::lib
