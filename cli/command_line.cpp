// SPDX-License-Identifier: Apache-2.0
#include "cli/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>

#include "base/units.h"
#include "config.h"

namespace dlrover::cli {
namespace {

constexpr std::uint64_t largest_step = static_cast<std::uint64_t>(INT64_MAX) - 1;  // as the daemon
constexpr std::uint64_t most_nodes = 16384;                                        // as the daemon
constexpr const char *commands = "(there are: status, events, rollback, scale, node, ckpt)";

Status wrong(std::string text) {
    return Status(Code::invalid_argument, std::move(text));
}

/// The first word that nothing is known of, with what it was taken for.
Status unknown(const std::vector<std::string> &words, const char *taken_for, const char *hint) {
    const std::string &word = words.front();
    if (word.starts_with('-')) return wrong("unknown option " + word);
    return wrong(std::string(taken_for) + " \"" + word + "\"" + hint);
}

}  // namespace

Result<CommandLine> parse_command_line(std::vector<std::string> words) {
    CommandLine line;
    CLI::App app("Looks at elastic jobs (srun --dlrover-elastic), and after them. See dlrover(1).",
                 "dlrover");
    app.set_version_flag("--version", "dlrover " PACKAGE_VERSION);
    // Here for --help alone: main() hands its words on before.
    app.add_subcommand("ckpt", "Checkpoints on storage: ls, show, verify, rm, rollback, export, import");
    app.allow_extras();  // they are named below
    auto *status = app.add_subcommand("status", "State of your elastic jobs, or all of one job");
    status->add_option("job", line.job, "JOB or JOB.STEP");
    status->add_flag("--json", line.json, "JSON instead of text");
    auto *events =
        app.add_subcommand("events", "Time line of a job: what failed, why, what was done, how long it took");
    events->add_option("job", line.job, "JOB or JOB.STEP")->required();
    events->add_flag("--json", line.json, "JSON instead of text");
    auto *rollback = app.add_subcommand("rollback", "Let a running job go on from an older step");
    rollback->add_option("job", line.job, "JOB or JOB.STEP")->required();
    std::string step;
    rollback->add_option("--step", step, "training step of a checkpoint")->required();
    rollback->add_flag("--yes", line.yes, "do not ask");
    auto *scale = app.add_subcommand("scale", "Let a running job have more nodes or fewer");
    scale->add_option("job", line.job, "JOB or JOB.STEP")->required();
    std::string nodes;
    scale->add_option("nodes", nodes, "how many are wanted, within --dlrover-elastic=MIN:MAX")->required();
    scale->add_flag("!--no-wait", line.wait, "return when it is on record");
    auto *node = app.add_subcommand("node", "What this node and the site have: node check");
    auto *check = node->add_subcommand(
        "check", "Is this node fit for elastic steps, and what does the site allow after a lost node?");
    check->add_flag("--json", line.json, "JSON instead of text");
    std::reverse(words.begin(), words.end());  // as CLI11 takes them
    try {
        app.parse(std::move(words));
    } catch (const CLI::RequiredError &) {
        if (rollback->parsed())
            return wrong("rollback needs a job and a step: dlrover rollback JOB --step N");
        if (scale->parsed()) return wrong("scale needs a job and a number of nodes: dlrover scale JOB N");
        return wrong("events needs a job: dlrover events JOB");
    } catch (const CLI::ParseError &error) {
        std::ostringstream out, err;
        if (app.exit(error, out, err) != 0) return wrong(error.what());
        line.text = out.str();
        return line;
    }
    if (auto extra = app.remaining(); !extra.empty())
        return unknown(extra, "unknown command", (std::string(" ") + commands).c_str());
    if (app.get_subcommands().empty()) return wrong(std::string("no command is given ") + commands);
    if (app.get_subcommands().size() > 1) return wrong("one command at a time");
    if (auto extra = app.remaining(true); !extra.empty()) return unknown(extra, "unexpected word", "");
    if (node->parsed() && !check->parsed()) return wrong("node needs a command: dlrover node check");
    if (!status->parsed() && !events->parsed() && !rollback->parsed() && !scale->parsed() && !node->parsed())
        return wrong("ckpt has to be the first word");
    if (rollback->parsed()) {
        auto parsed = parse_uint(step, 0, largest_step);
        if (!parsed) return wrong("--step: \"" + step + "\" is not a training step");
        line.train_step = *parsed;
    }
    if (scale->parsed()) {
        auto parsed = parse_uint(nodes, 1, most_nodes);
        if (!parsed) return wrong("\"" + nodes + "\" is not a number of nodes");
        line.nodes = static_cast<std::uint32_t>(*parsed);
    }
    line.command = status->parsed()     ? Command::status
                   : events->parsed()   ? Command::events
                   : rollback->parsed() ? Command::rollback
                   : scale->parsed()    ? Command::scale
                                        : Command::node_check;
    return line;
}

}  // namespace dlrover::cli
