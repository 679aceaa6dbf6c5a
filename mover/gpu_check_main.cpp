// SPDX-License-Identifier: Apache-2.0
// dlrover-gpu-check: has this process's GPUs work for a moment. Started by dlrover-mover where a node is
// looked at before it is used again; a person may run it, too.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>

#include "base/unique_fd.h"
#include "helper/program.h"
#include "mover/gpu_check.h"

using namespace dlrover;

namespace {

/// Where memory is short this process goes first.
void offer_itself() {
    UniqueFd file(::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
    if (file) (void)!::write(file.get(), "1000", 4);
}

/// Our line alone: what the driver, or a tool in it, prints goes nowhere.
UniqueFd take_stdout() {
    UniqueFd out(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
    UniqueFd null(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    if (null) ::dup2(null.get(), STDOUT_FILENO);
    return out;
}

}  // namespace

int main(int argc, char **argv) {
    constexpr helper::Program program{
        "dlrover-gpu-check",
        "Has the GPUs that this process sees multiply matrices, and says in a line whether they are sound.",
        "dlrover-mover starts it where a node is looked at before it is used again; it can be run by hand, "
        "too."};
    if (auto code = helper::take_arguments(program, argc, argv)) return *code;
    auto deadline = std::chrono::steady_clock::now() + mover::gpu_work_limit;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::syscall(SYS_close_range, STDERR_FILENO + 1, ~0U, 0);  // the mover's connections
    offer_itself();
    ::setenv("CUDA_CACHE_DISABLE", "1", 1);  // it is in the user's home, which may be away
    UniqueFd out = take_stdout();
    unsigned promised =
        mover::promised_gpus(std::getenv("CUDA_VISIBLE_DEVICES"), std::getenv("SLURM_STEP_GPUS"));
    auto verdict = mover::work_on_gpus(mover::GpuDriver::load(), promised, deadline);
    std::string line = mover::to_line(verdict);
    (void)!::write(out.get(), line.data(), line.size());
    ::_exit(verdict.kind == mover::GpuVerdict::Kind::failed ? 1 : 0);  // threads may hang in the driver
}
