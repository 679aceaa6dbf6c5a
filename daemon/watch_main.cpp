// SPDX-License-Identifier: Apache-2.0
// dlrover-watch: ends srun where it would wait for a lost node's tasks for ever. Started by srun's module
// (spank_plugin/watch.cpp), as the user, with a handle of srun as descriptor 3.
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <limits>
#include <thread>

#include "base/units.h"
#include "daemon/step_watch.h"
#include "proto/outcome.h"

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

using namespace dlrover;

namespace {

constexpr int srun = 3;
/// Most short steps are over by then, and Slurm is never asked about them.
constexpr std::chrono::seconds first_pause{2};
/// Of the daemon, which may ask others.
constexpr std::chrono::seconds answer_patience{5};

int usage(std::FILE *to, int status) {
    std::fputs(
        "usage: dlrover-watch JOB STEP RUN SOCKET\n"
        "       dlrover-watch --help | --version\n"
        "Ends srun when its elastic step is over and a node of it was lost. srun starts it, with a pidfd of\n"
        "itself as descriptor 3; it is of no use by hand. RUN: the job's restart count; SOCKET: the "
        "daemon's.\n",
        to);
    return status;
}

/// 0, or the reason why not.
int signal_srun(int number) {
    return ::syscall(SYS_pidfd_send_signal, srun, number, nullptr, 0) == 0 ? 0 : errno;
}

/// Also while a call of libslurm takes its time.
void end_with_srun() {
    pollfd entry{srun, POLLIN, 0};
    while (::poll(&entry, 1, -1) < 0 && errno == EINTR) {
    }
    ::_exit(0);
}

/// They are for the job, or for the terminal's programs; srun's end is ours.
void ignore_signals() {
    for (int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGPIPE})
        ::signal(number, SIG_IGN);
}

[[noreturn]] void watch(const proto::StepRun &step, const std::string &socket) {
    std::thread(end_with_srun).detach();
    std::this_thread::sleep_for(first_pause);
    auto calls = daemon::make_libslurm_calls("");
    daemon::StepWatch watch(JobId(step.job_id), StepId(step.step_id), [&](bool relay) {
        return proto::ask_outcome(socket, step, relay, answer_patience);
    });
    while (!watch.look(*calls, std::chrono::steady_clock::now())) std::this_thread::sleep_for(watch.pause());
    signal_srun(SIGTERM);
    while (true) ::pause();
}

}  // namespace

int main(int argc, char **argv) {
    if (argc == 2 && std::strcmp(argv[1], "--help") == 0) return usage(stdout, 0);
    if (argc == 2 && std::strcmp(argv[1], "--version") == 0)
        return std::puts("dlrover-watch " PACKAGE_VERSION), 0;
    constexpr auto most = std::numeric_limits<std::uint32_t>::max();
    bool whole = argc == 5;
    auto job = parse_uint(whole ? argv[1] : "", 1, most), step = parse_uint(whole ? argv[2] : "", 0, most),
         run = parse_uint(whole ? argv[3] : "", 0, most);
    if (!job || !step || !run) return usage(stderr, 2);
    ignore_signals();
    int error = signal_srun(0);
    if (error == ESRCH) return 0;
    if (error != 0) return usage(stderr, 2);
    watch({static_cast<std::uint32_t>(*job), static_cast<std::uint32_t>(*step),
           static_cast<std::uint32_t>(*run)},
          argv[4]);
}
