// SPDX-License-Identifier: Apache-2.0
// The world of one generation as the daemon describes it.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "local_types.h"

namespace dlrover::pmix {

/// A place is a node's number in the world.
struct World {
    GenerationId generation;
    std::string name_space;
    std::uint32_t place = 0;  ///< this node's
    std::vector<std::string> nodes;
    std::vector<std::uint16_t> ranks_per_node;
    /// Of what a program does not limit itself; none: from a daemon that has no such setting.
    std::optional<std::chrono::milliseconds> wait_limit;

    std::uint32_t size() const;
    std::uint32_t first_rank(std::uint32_t place) const;
    std::uint32_t ranks_here() const { return ranks_per_node[place]; }
    /// None: there is no such rank.
    std::optional<std::uint32_t> place_of(std::uint32_t rank) const;
    /// Of the nodes that run these ranks, ascending.
    std::vector<std::uint32_t> places_of(const std::vector<std::uint32_t> &ranks) const;
    std::vector<std::uint32_t> all_places() const;
};

/// Whose ranks these are: "dlrover.JOB.STEP.RUN.g1-4". A node that has joined is a job of its own to Slurm.
std::optional<std::pair<JobId, StepId>> step_of(const std::string &name_space);

/// invalid_argument: it can not be served.
Result<World> make_world(const proto::local::PmixWorldT &message);

}  // namespace dlrover::pmix
