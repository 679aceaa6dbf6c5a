// SPDX-License-Identifier: Apache-2.0
// Reads and writes of whole ranges of files, with sentences that name the file.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace dlrover::ckpt {

/// What the system says about `path`. Full disks and quotas are resource_exhausted; so is a limit on the size
/// of files (a process that may meet one ignores SIGXFSZ). A stale handle is unavailable, not not_found:
/// whether the file is still there shows when its name is looked up again.
Status file_error(const std::string &what, const std::string &path, int err = errno);

Status write_at(int fd, const void *data, std::uint64_t bytes, std::uint64_t offset, const std::string &path);
/// corrupt: the file ends before.
Status read_at(int fd, void *data, std::uint64_t bytes, std::uint64_t offset, const std::string &path);
/// The next read of this range (0 bytes: to the end) is of the file, not of what this node has of it in its
/// page cache, where the file system lets go of that.
void forget_cached(int fd, std::uint64_t offset, std::uint64_t bytes);
Result<UniqueFd> open_to_read(const std::string &path);
Result<std::uint64_t> file_size(int fd, const std::string &path);
Status sync_folder(const std::string &path);
/// Makes the folder and those above it, and makes sure that they stay after a loss of power.
Status make_folders(const std::string &path);

/// A small text or binary file: temporary name, fsync, rename, fsync of the folder.
Status write_whole_file(const std::string &folder, const std::string &name,
                        std::span<const std::uint8_t> bytes);
/// resource_exhausted: longer than `limit`.
Result<std::vector<std::uint8_t>> read_whole_file(const std::string &path, std::uint64_t limit);

/// Appends the hashes of the blocks of 1 MiB of [offset, offset + bytes). `watch`, where there is one, is
/// told of each block's bytes.
Status hash_range(int fd, std::uint64_t offset, std::uint64_t bytes, const std::string &path,
                  std::vector<std::uint64_t> &hashes, const std::function<void(std::uint64_t)> &watch = {});

}  // namespace dlrover::ckpt
