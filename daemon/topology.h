// SPDX-License-Identifier: Apache-2.0
// Which NUMA node a process runs on.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace dlrover::daemon {

struct NumaNode {
    unsigned number = 0;  ///< the system's
    std::vector<unsigned> cpus;
};

/// As hwloc sees this machine, or one by its synthetic description (for tests). Empty without hwloc.
std::vector<NumaNode> load_numa_nodes(const std::string &synthetic = {});

/// The node that all these CPUs belong to; of several the first: the others are memory of another kind. none:
/// they belong to different ones, or are not known.
std::optional<unsigned> numa_node_of(const std::vector<NumaNode> &nodes, const std::vector<unsigned> &cpus);

/// The CPUs that a process may use. Empty: it is gone.
std::vector<unsigned> cpus_of_process(int pid);

}  // namespace dlrover::daemon
