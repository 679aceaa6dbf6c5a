// SPDX-License-Identifier: Apache-2.0
#include "lib/stored_checkpoint.h"

#include "lib/stored_tensors.h"

namespace dlrover::lib {

Result<StoredCheckpoint> open_stored_checkpoint(const StoredRequest &request, bool verify_parts) {
    auto files = StoredFiles::open(request);
    if (!files) return files.take_status();
    bool same_size = request.saved_by == request.world_size;
    auto object = same_size ? read_stored_object(**files, request.rank, request.threads)
                            : empty_stored_object(**files, request.rank, request.world_size);
    if (!object) return (*files)->judge(object.take_status());
    return StoredCheckpoint{std::move(*object),
                            std::make_unique<StoredTensors>(*files, request.threads, verify_parts)};
}

}  // namespace dlrover::lib
