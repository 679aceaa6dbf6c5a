// SPDX-License-Identifier: Apache-2.0
// Removal of files and folders that never goes through a symbolic link into a folder that is somewhere else.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace dlrover::ckpt {

/// What bears this name, with all that is in it; of a symbolic link the link alone. What is not there is
/// fine. Each file is an answer of storage.
Status remove_tree(const std::string &path);

/// What a folder that is a symbolic link is taken for.
enum class FolderLink { followed, refused };

/// Removes the files whose names start with `prefix`, as `.new-…` of a writer that is no more, and that
/// `which` says yes to, where it is given. A folder that is not there has none.
Status remove_leftovers(const std::string &folder, const std::string &prefix,
                        FolderLink link = FolderLink::followed,
                        bool (*which)(std::string_view name) = nullptr);

}  // namespace dlrover::ckpt
