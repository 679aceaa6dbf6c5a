// SPDX-License-Identifier: Apache-2.0
// dlrover-allocate: asks Slurm for a job beside a group's own, how it is, or to end it. Started by
// dlrover-pmixd for a rank (pmix_server/allocator.h), as the user.
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>

#include "daemon/slurm_allocation.h"
#include "daemon/slurm_client.h"

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

using namespace dlrover;

namespace {

/// Who has asked gives up after 10 s.
constexpr unsigned longest_s = 20;

int usage(std::FILE *to, int status) {
    std::fputs(
        "usage: dlrover-allocate new JOB STEP NODES [seconds=N] [partition=NAME] [label=TEXT]\n"
        "       dlrover-allocate status JOB ALLOCATION\n"
        "       dlrover-allocate release JOB ALLOCATION\n"
        "       dlrover-allocate --help | --version\n"
        "Asks Slurm for NODES nodes more, in a job of their own, on the terms of a step's job; tells how\n"
        "such a job is; ends it. dlrover-pmixd starts it for a rank of that step.\n",
        to);
    return status;
}

bool say(const Result<proto::AllocationState> &answer) {
    std::string line = proto::encode_answer(answer);
    return std::fwrite(line.data(), 1, line.size(), stdout) == line.size() && std::fflush(stdout) == 0;
}

}  // namespace

int main(int argc, char **argv) {
    if (argc == 2 && std::strcmp(argv[1], "--help") == 0) return usage(stdout, 0);
    if (argc == 2 && std::strcmp(argv[1], "--version") == 0)
        return std::puts("dlrover-allocate " PACKAGE_VERSION) >= 0 ? 0 : 1;
    auto order = proto::decode_order({argv + (argc > 0 ? 1 : 0), argv + argc});
    if (!order) {
        std::fprintf(stderr, "dlrover-allocate: %s\n", order.status().message().c_str());
        return usage(stderr, 2);
    }
#ifdef SYS_close_range
    ::syscall(SYS_close_range, STDERR_FILENO + 1, ~0U, 0);  // the server's connections
#endif
    ::signal(SIGPIPE, SIG_IGN);
    ::alarm(longest_s);
    (void)daemon::make_libslurm_calls("");
    auto answer = daemon::carry_out(*order);
    bool heard = say(answer);
    if (!heard && answer.ok() && order->verb == proto::AllocationOrder::Verb::create)
        (void)daemon::carry_out(proto::release_of(*order, *answer)).ok();  // nobody knows of that job
    return heard && answer.ok() ? 0 : 1;
}
