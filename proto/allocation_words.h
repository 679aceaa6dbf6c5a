// SPDX-License-Identifier: Apache-2.0
// What dlrover-pmixd and dlrover-allocate say to each other: the words of a command line, and a line that
// answers. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"

namespace dlrover::proto {

/// A job beside the group's own: Slurm is asked for one, how it is, or to end it.
struct AllocationOrder {
    enum class Verb { create, release, status };
    Verb verb = Verb::create;
    JobId job;         ///< whose ranks ask
    JobId allocation;  ///< not of create; the rest is of create alone
    StepId step;       ///< of `job`: whose tasks and processors a node of it is for
    std::uint32_t nodes = 0;
    std::optional<std::uint32_t> seconds = {};  ///< none: as long as `job` has
    std::string partition = {};                 ///< empty: that of `job`
    std::string label = {};                     ///< the program's own word for it, or empty
};
inline constexpr std::uint32_t most_allocated_nodes = 16384;

/// Of Slurm: one name, or several with commas between them.
bool is_partition(std::string_view text);
bool is_allocation_label(std::string_view text);

std::vector<std::string> encode_order(const AllocationOrder &order);
/// invalid_argument: these are no order.
Result<AllocationOrder> decode_order(const std::vector<std::string> &words);

struct AllocationState {
    enum class Stage { waiting, running, ended };
    Stage stage = Stage::waiting;
    JobId job;
    /// waiting: Slurm's reason, or nothing; running: its nodes, "n3,n4".
    std::string words = {};
};

/// Of what an order to create has made.
AllocationOrder release_of(const AllocationOrder &order, const AllocationState &made);

/// With its end of line.
std::string encode_answer(const Result<AllocationState> &answer);
/// In all that a program has said so far. None: there is no whole one yet.
std::optional<Result<AllocationState>> find_answer(std::string_view said);
/// For people: what it has said at last.
std::string last_words(std::string_view said);

}  // namespace dlrover::proto
