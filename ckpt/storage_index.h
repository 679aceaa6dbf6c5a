// SPDX-License-Identifier: Apache-2.0
// The file through which plain h5py reads global tensors: docs/format-storage.md.
#pragma once

#include <span>
#include <string>

#include "ckpt/manifest.h"
#include "ckpt/storage_file.h"
#include "ckpt/storage_frame.h"

namespace dlrover::ckpt {

/// Writes FOLDER/index.h5 for all ranks' files of one checkpoint, which are in FOLDER. `files`: they, in
/// order; only what was read when they were opened is used, so they may be closed. They were opened to write
/// this index, since HDF5 reads what is missing as zeros without a word. `frames`: of indexes written
/// before; the same index comes out whether there is one that fits or not. Blocks; any thread.
Result<FileSum> write_storage_index(const std::string &folder, std::span<const StorageFile> files,
                                    StorageFrames &frames);

/// The same of files that are as `ranks` says: each is opened and compared first. corrupt, not_found: one is
/// not as reported; nothing is written. Holds all tables in memory.
Result<FileSum> write_storage_index(const std::string &folder, std::span<const RankFile> ranks);

}  // namespace dlrover::ckpt
