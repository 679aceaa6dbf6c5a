// SPDX-License-Identifier: Apache-2.0
#include "helper/process.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace dlrover::helper {
namespace {

constexpr int nicer_by = 10;
constexpr int io_of_process = 1, io_best_effort_lowest = 2 << 13 | 7;  // ioprio_set(2); glibc has no names

/// What ends the job must not keep its last checkpoint from storage: who has started this program kills it in
/// the end, and any moment is good for that.
void set_signals() {
    for (int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGPIPE, SIGXFSZ, SIGUSR1, SIGUSR2, SIGALRM})
        ::signal(number, SIG_IGN);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

// As far as the system lets us.

void step_back() {
    errno = 0;
    (void)!::nice(nicer_by);
    ::syscall(SYS_ioprio_set, io_of_process, 0, io_best_effort_lowest);
}

void raise_limits() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

Status settle_in(Pace pace) {
    pid_t parent = ::getppid();
    if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return Status::from_errno("prctl");
    if (::getppid() != parent) return Status(Code::unavailable, "the process above is gone");
    if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return Status::from_errno("prctl");
    if (::prctl(PR_SET_DUMPABLE, 0) != 0) return Status::from_errno("prctl");
    set_signals();
    if (pace == Pace::behind) step_back();
    raise_limits();
    return {};
}

}  // namespace dlrover::helper
