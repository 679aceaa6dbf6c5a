// SPDX-License-Identifier: Apache-2.0
// Small things with files and folders. (std::filesystem would double the static program.)
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/unique_fd.h"

namespace dlrover::agent {

/// A new private folder "name-XXXXXX" below TMPDIR or /tmp.
Result<std::string> make_private_dir(const std::string &name);
/// Folders that are missing on the way to `path`, and `path`.
Status make_dirs(const std::string &path);
/// Removes a folder and what is in it; follows no link. Missing: nothing to do.
void remove_tree(const std::string &path);
/// By a child, which is left behind where it takes longer: its file system hangs.
void remove_tree_within(const std::string &path, std::chrono::milliseconds limit);
/// The last `limit` bytes of a file; empty when it can not be read.
std::string read_tail(const std::string &path, std::size_t limit_bytes);
/// Writes what a blocking descriptor takes; less than all of it: errno says why. Any thread.
std::size_t write_all(int fd, std::string_view data);
/// What all calls of write_all() have written so far: it grows while a file is slow, and not while it hangs.
std::uint64_t bytes_written();
/// Two descriptors of the same regular file.
bool is_same_file(int one, int other);
/// Creates or empties a file for writing.
Result<UniqueFd> create_file(const std::string &path);
std::string current_dir();

/// A program of ours: in $DLROVER_SBINDIR, beside the one that runs (installed, or in the build tree), or
/// where it was configured to be.
Result<std::string> find_own_program(const std::string &name);

}  // namespace dlrover::agent
