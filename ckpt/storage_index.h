// SPDX-License-Identifier: Apache-2.0
// The file through which plain h5py reads global tensors: docs/format-storage.md.
#pragma once

#include <span>
#include <string>

#include "ckpt/manifest.h"

namespace dlrover::ckpt {

/// Writes FOLDER/index.h5 for all ranks' files of one checkpoint, which are in FOLDER as `ranks` says: each
/// is opened and compared first, since HDF5 reads what is missing as zeros without a word. corrupt,
/// not_found: one is not as reported; nothing is written. Blocks; any thread. Holds all tables in memory.
Result<FileSum> write_storage_index(const std::string &folder, std::span<const RankFile> ranks);

}  // namespace dlrover::ckpt
