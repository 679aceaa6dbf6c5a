// SPDX-License-Identifier: Apache-2.0
// The commands of `dlrover ckpt`, one function each. They print, and block.
#pragma once

#include "base/status.h"
#include "cli/ckpt_options.h"

namespace dlrover::cli {

Status list_places(const CkptOptions &options);
Status show_checkpoint(const CkptOptions &options);
/// corrupt: something is damaged; what, was printed.
Status verify_checkpoints(const CkptOptions &options);
Status remove_checkpoints(const CkptOptions &options);
Status roll_back(const CkptOptions &options);
Status export_checkpoint(const CkptOptions &options);
Status import_checkpoint(const CkptOptions &options);

/// A line on stderr, safe for a terminal.
void note(const std::string &sentence);

}  // namespace dlrover::cli
