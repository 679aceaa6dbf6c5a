// SPDX-License-Identifier: Apache-2.0
// What a checkpoint belongs to, across requeues and later jobs of the same run.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace dlrover::ckpt {

/// cluster/uid/name/command: `name` is that of the run, `argv` the command as Slurm has it, of which a hash
/// of 16 digits stays.
std::string make_lineage(const std::string &cluster, std::uint32_t uid, const std::string &name,
                         std::span<const std::string> argv);

}  // namespace dlrover::ckpt
