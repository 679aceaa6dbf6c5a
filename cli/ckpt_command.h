// SPDX-License-Identifier: Apache-2.0
// `dlrover ckpt`: looks after checkpoints on storage. No daemon has a part in it.
#pragma once

#include <string>
#include <vector>

namespace dlrover::cli {

/// words: behind "ckpt". Returns the exit status: 0, 1 (something is wrong with the data) or 2 (usage).
int run_ckpt(std::vector<std::string> words);

}  // namespace dlrover::cli
