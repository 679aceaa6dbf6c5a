// SPDX-License-Identifier: Apache-2.0
// A small file by which the nodes of a group find out whether they share their folder for checkpoints: rank
// 0's node leaves it there, the others look for it (docs/format-storage.md, "Marks").
#pragma once

#include <string>

#include "writer/destination.h"
#include "writer/term_claim.h"

namespace dlrover::writer {

/// Of this run, by the node of this name. Makes the folder; removes marks that are an hour older. Blocks.
Status make_mark(const Destination &to, const RunId &run, const std::string &node);

/// Whether `node`'s mark is there. `self` makes and removes a file of its own first: a network file system
/// looks anew at a folder that it changes. Blocks.
Result<bool> see_mark(const Destination &to, const RunId &run, const std::string &node,
                      const std::string &self);

}  // namespace dlrover::writer
