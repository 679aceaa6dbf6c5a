// SPDX-License-Identifier: Apache-2.0
#include "mover/gpu_check.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"

namespace dlrover::mover {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t most_bytes = 4096;

/// In the build tree as where it is installed.
std::string beside_this_one() {
    char path[PATH_MAX];
    ssize_t n = ::readlink("/proc/self/exe", path, sizeof path);
    std::string own(path, n > 0 ? static_cast<std::size_t>(n) : 0);
    return own.substr(0, own.rfind('/')) + "/dlrover-gpu-check";
}

/// Without what brings tools into a process, which may print, or slow it down.
std::vector<char *> plain_environment() {
    std::vector<char *> words;
    for (char **word = environ; *word; ++word) {
        std::string_view text(*word);
        bool tool = text.starts_with("LD_PRELOAD=") || text.starts_with("CUDA_INJECTION") ||
                    text.starts_with("CUDA_LAUNCH_BLOCKING=");
        if (!tool) words.push_back(*word);
    }
    words.push_back(nullptr);
    return words;
}

Result<pid_t> start(const std::string &file, int out) {
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
    ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawnattr_t attributes;
    sigset_t all;
    ::sigfillset(&all);
    ::posix_spawnattr_init(&attributes);
    ::posix_spawnattr_setsigdefault(&attributes, &all);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    char *argv[] = {const_cast<char *>(file.c_str()), nullptr};
    pid_t pid = 0;
    auto environment = plain_environment();
    int error = ::posix_spawn(&pid, file.c_str(), &actions, &attributes, argv, environment.data());
    ::posix_spawnattr_destroy(&attributes);
    ::posix_spawn_file_actions_destroy(&actions);
    if (error == 0) return pid;
    return Status(Code::unavailable, "can not run " + file + ": " + std::strerror(error));
}

/// Without its end: the deadline came first, or the program has ended. A thread of it that hangs may keep the
/// pipe open.
std::string read_line(int fd, Clock::time_point deadline) {
    std::string text;
    char buffer[512];
    while (text.size() < most_bytes && text.find('\n') == std::string::npos) {
        auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
        pollfd p{fd, POLLIN, 0};
        if (left <= 0) break;
        if (::poll(&p, 1, static_cast<int>(left)) <= 0) continue;
        ssize_t n = ::read(fd, buffer, sizeof buffer);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        text.append(buffer, static_cast<std::size_t>(n));
    }
    return text.substr(0, text.find('\n') + 1);
}

/// The wait status; none: it sleeps in the kernel still, and is reaped some other time.
std::optional<int> end(pid_t pid) {
    static std::vector<pid_t> left;
    std::erase_if(left, [](pid_t old) { return ::waitpid(old, nullptr, WNOHANG) != 0; });
    ::kill(pid, SIGKILL);
    for (int i = 0; i < 100; ++i) {
        int status = 0;
        if (::waitpid(pid, &status, WNOHANG) == pid) return status;
        ::usleep(10000);
    }
    left.push_back(pid);
    return std::nullopt;
}

std::string why_nothing(std::optional<int> wait_status, bool in_time) {
    if (!in_time) return "dlrover-gpu-check says nothing in time";
    std::string how = "dlrover-gpu-check ends before it has said anything";
    if (wait_status && WIFSIGNALED(*wait_status) && WTERMSIG(*wait_status) != SIGKILL)
        how += ": signal " + std::to_string(WTERMSIG(*wait_status));
    if (wait_status && WIFEXITED(*wait_status))
        how += ": exit code " + std::to_string(WEXITSTATUS(*wait_status));
    return how;
}

}  // namespace

bool has_gpus_of_its_own() {
    if (const char *visible = std::getenv("CUDA_VISIBLE_DEVICES"))
        return *visible != '\0' && *visible != '-' && std::strcmp(visible, "NoDevFiles") != 0;
    for (const char *name : {"SLURM_STEP_GPUS", "SLURM_JOB_GPUS"})
        if (const char *given = std::getenv(name); given && *given != '\0') return true;
    return false;
}

GpuVerdict check_gpus(Clock::time_point deadline, const std::string &program) {
    GpuVerdict verdict;
    if (!has_gpus_of_its_own()) return verdict;
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return verdict;
    UniqueFd ours(ends[0]), theirs(ends[1]);
    auto pid = start(program.empty() ? beside_this_one() : program, theirs.get());
    theirs.reset();
    if (!pid) {
        verdict.text = pid.status().message();
        return verdict;
    }
    std::string line = read_line(ours.get(), deadline);
    bool in_time = Clock::now() < deadline;
    auto wait_status = end(*pid);
    if (auto said = parse_verdict(line); said.ok()) return *said;
    verdict.text = why_nothing(wait_status, in_time);
    return verdict;
}

}  // namespace dlrover::mover
