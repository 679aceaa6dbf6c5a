// SPDX-License-Identifier: Apache-2.0
// What Slurm says of nodes. All calls block.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "daemon/slurm.h"

namespace dlrover::daemon {

/// Which leaf switch each node hangs on, by topology.conf. None where the site has no such topology, or this
/// Slurm tells of it in another way.
class Topology {
  public:
    void name_switches(std::vector<NodeAddress> &nodes);

  private:
    void load();

    std::map<std::string, std::string> leaves_;
    std::optional<std::chrono::steady_clock::time_point> loaded_;
};

/// Without the nodes that Slurm does not know; empty when it knows none of them.
Result<std::vector<NodeAddress>> find_addresses(const std::vector<std::string> &names);

/// A node that is drained already keeps its reason.
Status drain(const std::string &node, const std::string &reason);

/// Slurm has not heard it lately, or has given it up.
bool is_silent(const std::string &node);

/// As slurmctld keeps it: a base state and flags (NODE_STATE_...).
struct NodeState {
    std::string node;
    std::uint32_t state = 0;
};

/// Those that a job can have now. Nothing: one is still ending what ran there, or has not answered Slurm
/// lately; `anyhow`: it is left out. Pure.
std::optional<std::vector<std::string>> pick_idle(const std::vector<NodeState> &nodes, bool anyhow);

/// Of the nodes of these names, what pick_idle() says.
Result<std::optional<std::vector<std::string>>> find_idle(const std::vector<std::string> &names, bool anyhow);

}  // namespace dlrover::daemon
