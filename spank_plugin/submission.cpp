// SPDX-License-Identifier: Apache-2.0
#include "spank_plugin/submission.h"

#include "base/units.h"

namespace dlrover::spank {
namespace {

Verdict refused(std::string reason) {
    return {Verdict::Kind::refused, std::move(reason)};
}

const char *command_name(Tool tool) {
    switch (tool) {
        case Tool::srun:
            return "srun";
        case Tool::sbatch:
            return "sbatch";
        case Tool::salloc:
            return "salloc";
    }
    return "";
}

/// Why this kind of step can not be a group, or null.
const char *unsuitable_kind(const Submission &s) {
    if (s.pty) return "--pty: an elastic step's workers may be restarted and have no terminal";
    if (s.multi_prog) return "--multi-prog: all tasks of an elastic step run one program";
    if (s.container) return "--container: OCI containers hide the agent";
    if (s.heterogeneous) return "heterogeneous jobs and steps";
    return nullptr;
}

/// Why the number of nodes does not fit; ok where it fits or is left to the step.
Status check_nodes(const Submission &s) {
    auto nodes = fixed_node_count(s.nodes, s.nodes_listed);
    if (nodes) return fit_options(s.options, *nodes).take_status();
    if (s.options.max_nodes == 0 || s.nodes.empty()) return {};
    auto wanted = std::to_string(s.options.max_nodes + s.options.spares);
    return Status(Code::invalid_argument,
                  std::string("--dlrover-elastic with MAX needs exactly MAX + spares = ") + wanted +
                      " nodes; give " + command_name(s.tool) + " -N" + wanted);
}

}  // namespace

std::optional<std::uint32_t> fixed_node_count(std::string_view nodes, bool nodes_listed) {
    std::size_t dash = nodes.find('-');
    auto low = parse_uint(nodes.substr(0, dash), 1, UINT32_MAX);
    if (!low) return {};
    bool open_end = dash != std::string_view::npos;
    if (open_end && !(nodes_listed && nodes.substr(dash + 1) == "0")) return {};
    return static_cast<std::uint32_t>(*low);
}

/// The group has its options; what this job inherits or has as defaults says nothing.
static Verdict judge_joining(const Submission &s) {
    if (const char *kind = unsuitable_kind(s))
        return refused(std::string("--dlrover-join can not be used with ") + kind);
    if (auto nodes = fixed_node_count(s.nodes, s.nodes_listed))
        if (Status status = fit_options(s.options, *nodes).take_status(); !status.ok())
            return refused(status.message());
    return {Verdict::Kind::group, {}};
}

Verdict judge_submission(const Submission &s) {
    if (s.options.join) return judge_joining(s);
    if (s.options.elastic == Elastic::unset && s.other_given)
        return refused(std::string("--") + option_specs()[static_cast<std::size_t>(*s.other_given)].name +
                       " has no effect without --dlrover-elastic; give that option too");
    if (s.options.elastic != Elastic::on) return {};
    if (const char *kind = unsuitable_kind(s))
        return s.elastic_given ? refused(std::string("--dlrover-elastic can not be used with ") + kind)
                               : Verdict{};
    if (Status status = check_options(s.options); !status.ok()) return refused(status.message());
    if (Status status = check_nodes(s); !status.ok())
        return s.elastic_given ? refused(status.message()) : Verdict{};
    return {Verdict::Kind::group, {}};
}

}  // namespace dlrover::spank
