// SPDX-License-Identifier: Apache-2.0
#include "spank_plugin/watch.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "base/unique_fd.h"

namespace dlrover::spank {
namespace {

/// What dlrover-watch finds srun's handle under (daemon/watch_main.cpp).
constexpr int handle_fd = 3;
constexpr rlim_t most_closed_one_by_one = 65536;

// srun has threads: in its children only what POSIX allows after fork.

void close_from(unsigned first) {
#ifdef SYS_close_range
    if (::syscall(SYS_close_range, first, ~0U, 0) == 0) return;
#endif
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    auto end = static_cast<unsigned>(std::min(limit.rlim_cur, most_closed_one_by_one));
    for (unsigned fd = first; fd < end; ++fd) ::close(static_cast<int>(fd));
}

bool keep_only(int handle) {
    if (handle == handle_fd ? ::fcntl(handle, F_SETFD, 0) != 0 : ::dup2(handle, handle_fd) < 0) return false;
    int null = ::open("/dev/null", O_RDWR);
    for (int fd = 0; fd < handle_fd; ++fd)
        if (null < 0 || ::dup2(null, fd) < 0) return false;
    close_from(handle_fd + 1);
    return true;
}

[[noreturn]] void become(char *const *words, int handle) {
    sigset_t none;
    ::sigemptyset(&none);
    if (keep_only(handle) && ::chdir("/") == 0 && ::sigprocmask(SIG_SETMASK, &none, nullptr) == 0)
        ::execve(words[0], words, environ);
    ::_exit(127);
}

/// Not srun's child in the end: srun must neither reap it nor wait for it.
[[noreturn]] void detach(char *const *words, int handle) {
    ::setsid();
    if (::fork() == 0) become(words, handle);
    ::_exit(0);
}

}  // namespace

std::string watch_program(const std::string &agent) {
    return agent.substr(0, agent.rfind('/') + 1) + "dlrover-watch";  // npos + 1 is 0
}

Status start_watch(const std::string &program, const proto::StepRun &step, const std::string &socket) {
    UniqueFd handle(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
    if (!handle || ::access(program.c_str(), X_OK) != 0) return {};
    std::string name = program, job = std::to_string(step.job_id), number = std::to_string(step.step_id),
                run = std::to_string(step.restart_count), path = socket;
    char *words[] = {name.data(), job.data(), number.data(), run.data(), path.data(), nullptr};
    pid_t child = ::fork();
    if (child < 0) return Status::from_errno("fork");
    if (child == 0) detach(words, handle.get());
    while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
    }
    return {};
}

}  // namespace dlrover::spank
