// SPDX-License-Identifier: Apache-2.0
#include "spank_plugin/submit.h"

#include <unistd.h>

#include <cstdlib>

#include "base/units.h"

namespace dlrover::spank {
namespace {

/// Slurm's variable with the value that a job's steps inherit: '-' becomes '_'.
std::string inherited_variable(const OptionSpec &spec) {
    std::string name = "SLURM_SPANK__SLURM_SPANK_OPTION_dlrover_";
    for (const char *c = spec.name; *c; ++c) name += *c == '-' ? '_' : *c;
    return name;
}

/// A default that says no. Slurm hands a flag down by its name alone: to the job's steps it would say yes.
bool is_flag_off(const OptionSpec &spec, const char *value) {
    Options options;
    return spec.argument == Argument::none && parse_option(spec.id, value, options).ok() && !options.optional;
}

/// Slurm hands on options that it finds in its own variables before it reads the command line: the user's
/// defaults are put there, where nothing was inherited.
void apply_defaults(Module &module) {
    for (const OptionSpec &spec : option_specs()) {
        const char *value = spec.environment ? std::getenv(spec.environment) : nullptr;
        std::string variable = inherited_variable(spec);
        if (!value || std::getenv(variable.c_str()) || is_flag_off(spec, value)) continue;
        ::setenv(variable.c_str(), value, 0);
        module.from_default[static_cast<std::size_t>(spec.id)] = true;
    }
}

bool inherited(const OptionSpec &spec) {
    return std::getenv(inherited_variable(spec).c_str()) != nullptr;
}

/// Slurm's callback for each option, from its variables first, then from the command line. In slurmstepd the
/// request variable counts and this is only there because Slurm wants the option registered.
extern "C" int take_option(int value, const char *text, int remote) {
    Module *module = current_module();
    if (remote || !module || value < 0 || value >= static_cast<int>(option_count)) return 0;
    try {
        auto index = static_cast<std::size_t>(value);
        const OptionSpec &spec = option_specs()[index];
        ++module->seen[index];
        Status status = parse_option(spec.id, text ? text : "", module->options);
        if (status.ok()) return 0;
        bool default_value = module->from_default[index] && module->seen[index] == 1;
        slurm_error(
            "dlrover: %s%s", status.message().c_str(),
            default_value ? (std::string(" (from the variable ") + spec.environment + ")").c_str() : "");
        return -1;
    } catch (...) {
        return -1;
    }
}

bool given_here(const Module &module, const OptionSpec &spec) {
    return module.seen[static_cast<std::size_t>(spec.id)] > (inherited(spec) ? 1U : 0U);
}

void describe_command(Submission &s, const SlurmOptions &slurm) {
    auto flag = [&](const char *name) { return slurm.get(name).value_or("") == "set"; };
    s.nodes = slurm.get("nodes").value_or("");
    s.nodes_listed = slurm.given("nodelist").has_value();
    s.multi_prog = flag("multi-prog");
    s.container = slurm.given("container").has_value();
    s.pty = s.tool == Tool::srun && slurm.given("pty").has_value();
}

Submission describe(const Module &module, Tool tool, const std::optional<SlurmOptions> &slurm) {
    Submission s;
    s.tool = tool;
    s.options = module.options;
    for (const OptionSpec &spec : option_specs()) {
        if (!given_here(module, spec)) continue;
        if (spec.id == OptionId::elastic)
            s.elastic_given = true;
        else
            s.other_given = spec.id;
    }
    s.heterogeneous = module.components > 1;
    if (slurm) describe_command(s, *slurm);
    return s;
}

[[noreturn]] void refuse(const std::string &reason) {
    slurm_error("dlrover: %s", reason.c_str());
    const char *wanted = std::getenv("SLURM_EXIT_ERROR");
    auto code = wanted ? parse_uint(wanted, 1, 255) : Result<std::uint64_t>(std::uint64_t{1});
    std::exit(code ? static_cast<int>(*code) : 1);
}

}  // namespace

const NeededOption need_no_kill = {"no-kill", 0, nullptr, "set",
                                   "a lost node will end the whole job, which Slurm requeues or kills; give "
                                   "--no-kill to go on without that node"};

Status register_options(spank_t handle, bool with_defaults) {
    Module *module = current_module();
    if (with_defaults) apply_defaults(*module);
    for (const OptionSpec &spec : option_specs()) {
        spank_option option{};
        option.name = const_cast<char *>(spec.name);
        option.arginfo = const_cast<char *>(spec.arginfo);
        option.usage = const_cast<char *>(spec.usage);
        option.has_arg = static_cast<int>(spec.argument);
        option.val = static_cast<int>(spec.id);
        option.cb = take_option;
        if (spank_option_register(handle, &option) != ESPANK_SUCCESS)
            return Status(Code::system, std::string("Slurm does not take the option --") + spec.name);
    }
    return {};
}

Verdict::Kind conclude_options(Module &module, Tool tool, const std::optional<SlurmOptions> &slurm) {
    ++module.components;
    Verdict verdict = judge_submission(describe(module, tool, slurm));
    module.seen.fill(0);
    if (verdict.kind == Verdict::Kind::refused) refuse(verdict.reason);
    return verdict.kind;
}

void need_option(std::optional<SlurmOptions> &slurm, const NeededOption &needed) {
    std::optional<std::string> value;
    if (slurm) {
        value = slurm->given(needed.name);
        if (!value && slurm->set(needed.name, needed.letter, needed.value)) value = slurm->given(needed.name);
    }
    if (!value)
        slurm_spank_log("dlrover: --%s could not be set: %s", needed.name, needed.fallback);
    else if (*value != needed.read_back)
        slurm_spank_log("dlrover: --%s is \"%s\": %s", needed.name, value->c_str(), needed.fallback);
}

}  // namespace dlrover::spank
