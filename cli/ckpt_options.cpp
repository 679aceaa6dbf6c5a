// SPDX-License-Identifier: Apache-2.0
#include "cli/ckpt_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <sstream>

#include "base/units.h"
#include "ckpt/manifest.h"
#include "ckpt/storage_name.h"

namespace dlrover::cli {
namespace {

Status wrong(std::string text) {
    return Status(Code::invalid_argument, std::move(text));
}

/// Text first, so that a number that is none gets a sentence of ours.
struct Words {
    std::vector<std::string> steps;
    std::string older_than;
};

struct Parser {
    CLI::App app{"Looks after checkpoints on storage. See dlrover-ckpt(1).", "dlrover ckpt"};
    CkptOptions options;
    Words words;
    std::array<std::pair<CLI::App *, CkptAction>, 7> commands{};

    Parser();
    CLI::App *add(std::size_t at, CkptAction action, const char *name, const char *text);
    void add_step(CLI::App *command, const char *text, bool several);
    bool knows(const std::string &name) const;
    std::string names() const;
    Status check() const;
    Status check_import() const;
    Status read_numbers();
};

bool Parser::knows(const std::string &name) const {
    return std::ranges::any_of(commands, [&](auto &command) { return command.first->get_name() == name; });
}

std::string Parser::names() const {
    std::string text;
    for (const auto &command : commands) text += (text.empty() ? "" : ", ") + command.first->get_name();
    return text;
}

CLI::App *Parser::add(std::size_t at, CkptAction action, const char *name, const char *text) {
    CLI::App *command = app.add_subcommand(name, text);
    commands[at] = {command, action};
    if (action != CkptAction::import_from)
        command
            ->add_option("DIR", options.folder, "Folder of checkpoints, of one lineage, or of one checkpoint")
            ->required();
    return command;
}

void Parser::add_step(CLI::App *command, const char *text, bool several) {
    auto *option = command->add_option("--step", words.steps, text)->type_name("STEP");
    several ? option->expected(1, 1 << 20) : option->expected(1);
}

Parser::Parser() {
    auto *list = add(0, CkptAction::list, "ls", "The checkpoints of a folder");
    auto *show = add(1, CkptAction::show, "show", "One checkpoint: ranks, tensors, sizes");
    auto *verify = add(2, CkptAction::verify, "verify", "Every byte against its checksum");
    auto *remove = add(3, CkptAction::remove, "rm", "Removes checkpoints");
    auto *rollback = add(4, CkptAction::rollback, "rollback", "Lets a later job go on from an older one");
    auto *to = add(5, CkptAction::export_to, "export", "Global tensors as a file of another format");
    auto *from = add(6, CkptAction::import_from, "import", "A checkpoint out of a .safetensors file");
    for (auto *command : {list, show}) command->add_flag("--json", options.json, "JSON instead of text");
    for (auto *command : {show, verify, to}) add_step(command, "Default: the newest complete one", false);
    verify->add_flag("--all", options.all, "Every complete one, suspect ones too, not the newest alone");
    add_step(remove, "Those of these training steps", true);
    remove->add_option("--older-than-step", words.older_than, "Complete ones of lower steps")
        ->type_name("STEP");
    remove->add_flag("--incomplete", options.incomplete, "What writers left that did not end");
    remove->add_flag("--suspect", options.suspect, "What a rollback set aside");
    remove->add_flag("--force", options.force,
                     "Also the newest complete one, and what may still be being written");
    add_step(rollback, "Newer ones are passed over from now on", false);
    rollback->add_flag("--undo", options.undo, "Takes all rollbacks of the lineage back");
    for (auto *command : {remove, rollback}) command->add_flag("--yes", options.yes, "Does not ask");
    to->add_option("--to", options.format, "safetensors, torch or dcp")->required()->type_name("FORMAT");
    to->add_option("OUT", options.file, "File (dcp: folder) to write")->required();
    to->add_option("--name", options.names, "Tensors that match, as a shell matches files")
        ->type_name("GLOB")
        ->expected(1, 1 << 20);
    to->add_flag("--force", options.force, "Replaces a file that is there");
    from->add_option("FILE", options.file, "File to read")->required();
    from->add_option("--to", options.folder, "Folder of checkpoints")->required()->type_name("DIR");
    from->add_option("--lineage", options.lineage, "Lineage of the job that is to start from it")
        ->type_name("NAME");
    from->add_option("--name", options.run, "Instead: that job's --dlrover-name, and its COMMAND")
        ->type_name("NAME");
    from->add_option("--cluster", options.cluster, "Default: this node's")->type_name("NAME");
    from->add_option("COMMAND", options.command, "Behind --, with its arguments, as srun gets them");
    add_step(from, "Training step that it counts as", false);
    from->get_option("--step")->required();
}

Status Parser::read_numbers() {
    for (const std::string &word : words.steps) {
        auto number = parse_uint(word, 0, UINT64_MAX);
        if (!number) return wrong("--step takes a training step, not \"" + word + "\"");
        options.steps.push_back(*number);
    }
    if (words.older_than.empty()) return {};
    auto number = parse_uint(words.older_than, 0, UINT64_MAX);
    if (!number) return wrong("--older-than-step takes a training step, not \"" + words.older_than + "\"");
    options.older_than = *number;
    return {};
}

Status Parser::check_import() const {
    const CLI::App &from = *commands[6].first;
    if (from.count("--lineage") == from.count("--name"))
        return wrong(from.count("--name") != 0 ? "import takes either --lineage or --name, not both"
                                               : "import needs either --lineage or --name");
    bool job = from.count("--name") != 0;
    if (job != !options.command.empty() || job != !options.run.empty())
        return wrong("import takes --name NAME together with -- COMMAND, as the job is going to run it");
    const std::string &lineage = options.lineage;
    if (job || (!lineage.empty() && lineage.size() <= ckpt::max_lineage_bytes && ckpt::valid_utf8(lineage)))
        return {};
    return wrong("--lineage takes UTF-8 text of 1 to 4096 bytes");
}

Status Parser::check() const {
    if (options.action == CkptAction::remove) {
        bool what = !options.steps.empty() || options.older_than || options.incomplete || options.suspect;
        if (!what) return wrong("rm needs --step, --older-than-step, --incomplete or --suspect");
    }
    if (options.action == CkptAction::rollback && options.undo == !options.steps.empty())
        return wrong(options.undo ? "rollback takes either --step or --undo, not both"
                                  : "rollback needs either --step or --undo");
    if (options.action == CkptAction::verify && options.all && !options.steps.empty())
        return wrong("verify takes either --step or --all");
    if (options.action == CkptAction::import_from) return check_import();
    if (options.action != CkptAction::export_to) return {};
    for (const char *known : {"safetensors", "torch", "dcp"})
        if (options.format == known) return {};
    return wrong("--to takes safetensors, torch or dcp, not \"" + options.format + "\"");
}

}  // namespace

Result<CkptOptions> parse_ckpt_options(std::vector<std::string> words) {
    Parser parser;
    parser.app.require_subcommand(1);
    if (!words.empty() && !words.front().starts_with("-") && !parser.knows(words.front()))
        return wrong("ckpt: unknown command \"" + words.front() + "\" (there are: " + parser.names() + ")");
    std::reverse(words.begin(), words.end());  // as CLI11 takes them
    try {
        parser.app.parse(std::move(words));
    } catch (const CLI::ParseError &error) {
        std::ostringstream out, err;
        if (parser.app.exit(error, out, err) != 0) return wrong(std::string("ckpt: ") + error.what());
        parser.options.text = out.str();
        return parser.options;
    }
    for (auto [command, action] : parser.commands)
        if (command->parsed()) parser.options.action = action;
    DLROVER_TRY(parser.read_numbers());
    DLROVER_TRY(parser.check());
    return std::move(parser.options);
}

}  // namespace dlrover::cli
