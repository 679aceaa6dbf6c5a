// SPDX-License-Identifier: Apache-2.0
// Puts one rank's sealed object on storage: docs/format-storage.md.
#pragma once

#include <functional>
#include <string>

#include "ckpt/storage_file.h"
#include "ckpt/storage_image.h"

namespace dlrover::ckpt {

struct StorageWriteOptions {
    bool direct = true;        ///< past the page cache where the filesystem can
    bool check_source = true;  ///< corrupt, and no file, where memory does not have the table's checksums
    /// Asked, if set, when memory has been read for the last time: a failure, and there is no file.
    std::function<Status()> confirm;
    /// Told, if set, of data bytes as storage takes them, padding included; by several threads.
    std::function<void(std::uint64_t bytes)> watch;
    /// Of files written before, where the next may look like one of them.
    StorageFrames *frames = nullptr;
};

/// Writes FOLDER/rank-R.h5; makes the folder, removes what a crashed writer of this rank left there. On
/// return the file is on the device and has its final name, or there is no file of that name but one from
/// before. Runs as the user whose folder it is. Blocks; any thread, and one more meanwhile.
Result<RankFile> write_storage_file(const std::string &folder, const SealedObject &object,
                                    const StorageWriteOptions &options = {});

}  // namespace dlrover::ckpt
