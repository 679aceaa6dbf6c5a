// SPDX-License-Identifier: Apache-2.0
// dlrover-run: the agent with torchrun's command line.
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>

#include "agent/run_options.h"
#include "agent/standalone.h"
#include "agent/task.h"
#include "config.h"

using namespace dlrover;
using namespace dlrover::agent;

namespace {

int fail(const std::string &text, int code = 2) {
    std::fprintf(stderr, "dlrover-run: %s\n", text.c_str());
    return code;
}

void note(const std::string &text) {
    std::fprintf(stderr, "dlrover-run: %s\n", text.c_str());
}

/// Below Slurm srun's options decide; say it where the command line says otherwise.
void note_overridden(const RunOptions &options) {
    if (options.min_nodes) note("--nnodes has no effect here: srun --dlrover-elastic=MIN:MAX sets the nodes");
    if (options.max_restarts) note("--max-restarts has no effect here: use srun --dlrover-max-restarts");
    if (options.node_unit) note("--node-unit has no effect here: use srun --dlrover-node-unit");
    if (options.standalone) note("--standalone: this run does not belong to the Slurm step's group");
}

void note_all(const RunOptions &options, const Environment &env) {
    for (const std::string &text : options.notes) note(text);
    if (options.workers > 1 && !env.contains("OMP_NUM_THREADS"))
        note("OMP_NUM_THREADS is not set: every worker gets OMP_NUM_THREADS=1; set it to tune your program");
}

Status choose_log_dir(LogPlan &logs) {
    if (!logs.redirects.any() && !logs.tee.any()) {
        logs.dir.clear();
        return {};
    }
    if (!logs.dir.empty()) return {};
    char name[] = "/tmp/dlrover-logs-XXXXXX";
    if (!::mkdtemp(name)) return Status::from_errno("can not make a folder for logs");
    logs.dir = name;
    note("the workers' logs are in " + logs.dir);
    return {};
}

int run_standalone(const RunOptions &options, TaskSpec spec) {
    if (options.max_nodes && options.min_nodes != 1U)
        return fail("--standalone is for one node, not --nnodes with more");
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    StandaloneSpec wanted{options.argv, options.run_id, options.workers, options.max_restarts.value_or(3)};
    auto run = Standalone::start(wanted);
    if (!run) return fail(run.status().message(), exit_no_daemon);
    spec.under_slurm = false;
    spec.launch.job = run->job();
    spec.launch.step = StepId(0);
    spec.launch.socket = run->socket();
    spec.env.erase("DLROVER_OPTIONAL");
    spec.spared = run->keeper();
    spec.orphan_dir = run->dir();
    int code = run_task(std::move(spec));
    run->end();
    return code;
}

int run_below_slurm(const RunOptions &options, TaskSpec spec) {
    if (auto code = check_registration(spec)) return *code;
    Status s = read_task(spec.env, spec);
    if (s.code() == Code::not_found && spec.env.contains("SLURM_JOB_ID"))
        return fail(
            "this step is not elastic: start it with `srun --dlrover-elastic[=MIN:MAX] dlrover-run ...', or "
            "use --standalone for this node alone");
    if (s.code() == Code::not_found)
        return fail(
            "there is no Slurm step here: use --standalone to run on this machine alone, or start it with "
            "`srun --dlrover-elastic dlrover-run ...'");
    if (!s.ok()) return fail(s.message());
    note_overridden(options);
    return run_task(std::move(spec));
}

}  // namespace

int main(int argc, char **argv) {
    TaskSpec spec;
    spec.program = "dlrover-run";
    spec.env = environment_from(environ);
    std::vector<std::string> args(argv + 1, argv + argc);
    auto options = parse_run_options(args, spec.env, MachineCounts::read(spec.env));
    if (!options) return fail(options.status().message());
    if (options->help) return std::fputs(run_usage(), stdout) < 0;
    if (options->version) return std::puts(PACKAGE_NAME " " PACKAGE_VERSION) < 0;
    if (value_of(spec.env, "DLROVER_MANAGED") == "1" && spec.env.contains("RANK") && !options->standalone)
        return fail("this process is already a worker of an elastic step (rank " +
                    value_of(spec.env, "RANK") +
                    "): give srun the program itself, or let dlrover-run be srun's command");
    note_all(*options, spec.env);
    if (Status s = choose_log_dir(options->logs); !s.ok()) return fail(s.message());
    spec.argv = options->argv;
    spec.workers = options->workers;
    spec.logs = options->logs;
    spec.launch.role = options->role;
    spec.launch.omp_default = options->workers > 1;
    return options->standalone ? run_standalone(*options, std::move(spec))
                               : run_below_slurm(*options, std::move(spec));
}
