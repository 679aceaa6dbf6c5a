// SPDX-License-Identifier: Apache-2.0
#include "agent/task.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>

#include "agent/files.h"
#include "base/units.h"
#include "proto/local_codec.h"

namespace dlrover::agent {
namespace {

/// Where the daemon is held up: Slurm lets the module wait for two seconds only.
constexpr Loop::Duration late_start_limit{30000};
constexpr Loop::Duration scratch_limit{2000};
constexpr std::uint64_t most_id = 0xffffffffU, most_tasks = 65535;

Result<std::uint64_t> number_from(const Environment &env, const char *name, std::uint64_t high) {
    auto number = parse_uint(value_of(env, name), 0, high);
    if (!number) return Status(Code::invalid_argument, std::string(name) + ": " + number.status().message());
    return number;
}

/// Only returns when the program can not be run.
int exec_unprotected(const TaskSpec &spec) {
    std::vector<std::string> strings = to_strings(unprotected_environment(spec.env));
    std::vector<char *> argv, envp;
    for (const auto &s : spec.argv) argv.push_back(const_cast<char *>(s.c_str()));
    for (auto &s : strings) envp.push_back(s.data());
    argv.push_back(nullptr);
    envp.push_back(nullptr);
    std::string file = find_program(spec.argv[0]);
    ::execvpe(file.c_str(), argv.data(), envp.data());
    int err = errno;
    std::fprintf(stderr, "%s: %s\n", spec.program.c_str(), why_not_run(spec.argv[0], err).c_str());
    return err == ENOENT ? 127 : 126;
}

int run_agent(const TaskSpec &spec, const GuardedContext &context, const std::string &scratch) {
    auto loop = Loop::create();
    if (!loop) {
        std::fprintf(stderr, "%s: %s\n", spec.program.c_str(), loop.status().message().c_str());
        return exit_cannot_run;
    }
    AgentConfig config;
    config.program = spec.program;
    config.node = node_name(spec.env);
    config.crew = {spec.launch,     spec.env, spec.argv,     spec.workers,
                   context.signals, scratch,  current_dir(), spec.logs};
    config.task = spec.task;
    config.optional = value_of(spec.env, "DLROVER_OPTIONAL") == "1";
    config.joins = value_of(spec.env, "DLROVER_JOINS") == "1";
    if (value_of(spec.env, "DLROVER_REGISTER_LATE") == "1") config.start_limit = late_start_limit;
    config.hangup_ends = !spec.under_slurm;
    config.life_lines = context.life_lines;
    Outcome outcome = Agent(**loop, std::move(config), context.taken).run();
    if (!outcome.unprotected) {
        // The guard does it too, unless it was killed.
        remove_tree_within(scratch, scratch_limit);
        if (outcome.orphaned) remove_tree_within(spec.orphan_dir, scratch_limit);
        return outcome.exit_code;
    }
    context.signals.restore();
    return exec_unprotected(spec);
}

/// One of each a node; where one is not installed, the daemon tells the user.
void add_helpers(const TaskSpec &spec, GuardConfig &guard) {
    if (!spec.under_slurm || spec.task != 0) return;
    auto add = [&](const char *name) {
        auto program = find_own_program(name);
        if (program.ok()) guard.helpers.push_back(*program);
        return program.ok();
    };
    const std::string &copies = value_of(spec.env, "DLROVER_REDUNDANCY");
    if (!value_of(spec.env, "DLROVER_CKPT_DIR").empty()) add("dlrover-writer");
    if (!copies.empty() && copies != "single") add("dlrover-mover");
    const std::string &pmix = value_of(spec.env, "DLROVER_PMIX");
    if ((pmix == "yes" || pmix == "auto") && add("dlrover-pmixd")) guard.last_helper = guard.helpers.back();
    guard.helper_environment = to_strings(spec.env);
    guard.helper_environment.push_back("DLROVER_SCRATCH=" + guard.scratch);
}

}  // namespace

std::string node_name(const Environment &env) {
    if (const std::string &name = value_of(env, "SLURMD_NODENAME"); !name.empty()) return name;
    char name[256] = "";
    ::gethostname(name, sizeof name - 1);
    return name;
}

Status read_task(const Environment &env, TaskSpec &spec) {
    if (!env.contains("DLROVER_JOB_ID")) return Status(Code::not_found, "DLROVER_JOB_ID is not set");
    auto job = number_from(env, "DLROVER_JOB_ID", most_id);
    if (!job) return job.take_status();
    auto step = number_from(env, "DLROVER_STEP_ID", most_id);
    if (!step) return step.take_status();
    spec.launch.job = JobId(static_cast<std::uint32_t>(*job));
    spec.launch.step = StepId(static_cast<std::uint32_t>(*step));
    spec.launch.socket = value_of(env, "DLROVER_SOCKET");
    if (spec.launch.socket.empty()) spec.launch.socket = proto::default_socket_path;
    if (!env.contains("DLROVER_LOCAL_TASK")) return {};
    auto task = number_from(env, "DLROVER_LOCAL_TASK", most_tasks);
    if (!task) return task.take_status();
    spec.task = static_cast<std::uint16_t>(*task);
    return {};
}

std::optional<int> check_registration(const TaskSpec &spec) {
    const std::string &why = value_of(spec.env, "DLROVER_REGISTER_ERROR");
    if (why.empty()) return std::nullopt;
    std::string node = node_name(spec.env);
    if (value_of(spec.env, "DLROVER_OPTIONAL") == "1") {
        std::fprintf(stderr, "%s: warning: running without protection on %s: %s\n", spec.program.c_str(),
                     node.c_str(), why.c_str());
        return exec_unprotected(spec);
    }
    std::fprintf(
        stderr,
        "%s: node %s can not protect this step: %s. Ask the administrator to look at dlrover.service on "
        "that node, leave the node out (--exclude=%s), or add --dlrover-optional to run unprotected.\n",
        spec.program.c_str(), node.c_str(), why.c_str(), node.c_str());
    return exit_no_daemon;
}

int run_task(TaskSpec spec) {
    GuardedContext context = prepare_signals();
    auto scratch = make_private_dir("dlrover-agent");
    if (!scratch) {
        std::fprintf(stderr, "%s: %s\n", spec.program.c_str(), scratch.status().message().c_str());
        return exit_cannot_run;
    }
    GuardConfig guard{spec.under_slurm, spec.spared, *scratch, {}, {}};
    add_helpers(spec, guard);
    return run_guarded(guard, std::move(context),
                       [&](const GuardedContext &c) { return run_agent(spec, c, *scratch); });
}

}  // namespace dlrover::agent
