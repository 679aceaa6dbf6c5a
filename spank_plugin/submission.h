// SPDX-License-Identifier: Apache-2.0
// Decides what srun, sbatch and salloc do with the options. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "spank_plugin/options.h"

namespace dlrover::spank {

enum class Tool : std::uint8_t { srun, sbatch, salloc };

/// What is known when all options have been read.
struct Submission {
    Tool tool = Tool::srun;
    Options options;
    bool elastic_given = false;  ///< --dlrover-elastic by this command itself (or #SBATCH), not inherited
    std::optional<OptionId> other_given;  ///< another --dlrover-* option by this command itself
    std::string nodes;          ///< Slurm's --nodes: "4", "2-4", "1-0" (not given); empty: not known
    bool nodes_listed = false;  ///< --nodelist was given: "4-0" then counts its names
    bool pty = false;
    bool multi_prog = false;
    bool container = false;
    bool heterogeneous = false;  ///< a second component has come
};

struct Verdict {
    enum class Kind : std::uint8_t {
        untouched,  ///< not ours: leave everything as it is
        group,
        refused,  ///< `reason` says why, in a whole sentence
    };
    Kind kind = Kind::untouched;
    std::string reason;
};

Verdict judge_submission(const Submission &submission);

/// The number of nodes that --nodes leaves no doubt about.
std::optional<std::uint32_t> fixed_node_count(std::string_view nodes, bool nodes_listed);

}  // namespace dlrover::spank
