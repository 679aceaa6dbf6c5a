// SPDX-License-Identifier: Apache-2.0
// Names of files that are not whole yet. Several writers may be at the same file: on different nodes, or of
// different runs of a lineage. None of them ever touches another's.
#pragma once

#include <string>

#include "base/status.h"
#include "ckpt/removal.h"

namespace dlrover::ckpt {

/// ".new-NAME.HOST.PID.TOKEN": another one at each call, of this process alone.
std::string temporary_name(const std::string &name);

/// Removes what processes of this host that are no more have left of names that begin with `prefix`. What
/// belongs to other hosts goes when the checkpoint is complete (writer/tidying). A folder that is not there
/// has none.
Status remove_abandoned(const std::string &folder, const std::string &prefix,
                        FolderLink link = FolderLink::followed);

/// An errno. 0: the file bears the name `path`, too, or now; EEXIST: another one does, and keeps it. Where
/// the filesystem has no links to files, it is renamed, and takes the place of the other one.
int take_name(const std::string &temporary, const std::string &path);

}  // namespace dlrover::ckpt
