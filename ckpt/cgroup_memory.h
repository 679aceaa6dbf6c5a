// SPDX-License-Identifier: Apache-2.0
// What the cgroups above a process leave it of memory (versions 1 and 2).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace dlrover::ckpt {

struct CgroupMemory {
    std::uint64_t limit_bytes = 0;
    std::uint64_t used_bytes = 0;  ///< without what the kernel can drop at once
    std::string path;              ///< of the group that has the limit

    std::uint64_t free_bytes() const { return limit_bytes > used_bytes ? limit_bytes - used_bytes : 0; }
};

/// Of the groups above `process` (a pid or "self") the one that leaves it least. none: no limit, or none that
/// can be read from here. `proc`, `root`: for tests.
std::optional<CgroupMemory> cgroup_memory(const std::string &process, const std::string &proc = "/proc",
                                          const std::string &root = "/sys/fs/cgroup");

}  // namespace dlrover::ckpt
