// SPDX-License-Identifier: Apache-2.0
// import where HDF5 was not found when this was built.
#include "cli/ckpt_work.h"

namespace dlrover::cli {

Status import_checkpoint(const CkptOptions &) {
    return Status(Code::unsupported, "this dlrover was built without HDF5: it cannot write checkpoints");
}

}  // namespace dlrover::cli
