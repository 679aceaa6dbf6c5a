// SPDX-License-Identifier: Apache-2.0
// dlrover-agent PROGRAM [ARGUMENT]...: put in front of a task's command by the SPANK module.
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "agent/task.h"
#include "config.h"

using namespace dlrover;
using namespace dlrover::agent;

namespace {

int usage(std::FILE *to, int status) {
    std::fputs(
        "usage: dlrover-agent PROGRAM [ARGUMENT]...\n"
        "Runs PROGRAM as a worker of an elastic step. Not started by hand: srun --dlrover-elastic does it;\n"
        "dlrover-run --standalone works without Slurm.\n",
        to);
    return status;
}

}  // namespace

int main(int argc, char **argv) {
    ::prctl(PR_SET_NAME, "dlrover-agent");  // the module may start it by a descriptor's name
    TaskSpec spec;
    spec.program = "dlrover-agent";
    spec.env = environment_from(environ);
    std::string own_name = value_of(spec.env, "DLROVER_AGENT_ARGV0");
    if (!own_name.empty()) spec.argv.push_back(own_name);
    spec.argv.insert(spec.argv.end(), argv + 1, argv + argc);
    if (own_name.empty() && argc > 1 && std::strcmp(argv[1], "--help") == 0) return usage(stdout, 0);
    if (own_name.empty() && argc > 1 && std::strcmp(argv[1], "--version") == 0)
        return std::puts(PACKAGE_NAME " " PACKAGE_VERSION) < 0;
    if (spec.argv.empty()) return usage(stderr, 2);
    if (auto code = check_registration(spec)) return *code;
    if (Status s = read_task(spec.env, spec); !s.ok()) {
        std::fprintf(stderr, "dlrover-agent: this is no elastic step: %s\n", s.message().c_str());
        return usage(stderr, 2);
    }
    return run_task(std::move(spec));
}
