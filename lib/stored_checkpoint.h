// SPDX-License-Identifier: Apache-2.0
// A checkpoint on storage opened for one rank.
#pragma once

#include <memory>

#include "lib/global_tensors.h"
#include "lib/stored_object.h"

namespace dlrover::lib {

struct StoredCheckpoint {
    StoredObject object;  ///< this rank's; without chunks where a world of another size saved it
    std::unique_ptr<GlobalTensors> tensors;
};

/// corrupt: damaged; the checkpoint has been marked suspect (StoredFiles::judge).
Result<StoredCheckpoint> open_stored_checkpoint(const StoredRequest &request, bool verify_parts);

}  // namespace dlrover::lib
