// SPDX-License-Identifier: Apache-2.0
#include "cli/python_writer.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

namespace dlrover::cli {
namespace {

/// Of what is not there -m and -c find the current folder's, and whoever may write there would run as us.
/// PYTHONSAFEPATH, for the same, is known from Python 3.11 on.
constexpr char program[] =
    "import sys; sys.path[:] = [p for p in sys.path if p]; from dlrover_slurm.convert import main; "
    "sys.exit(main(sys.argv[1:]))";

/// Where the package was installed comes last: somebody who sets PYTHONPATH means it. An entry that is empty
/// would be the current folder, and comes of a variable that was not set.
std::string python_path(std::string_view given) {
    std::string path;
    while (!given.empty()) {
        std::string_view entry = given.substr(0, given.find(':'));
        given.remove_prefix(std::min(given.size(), entry.size() + 1));
        if (!entry.empty()) path.append(entry).append(":");
    }
    return path + DLROVER_PYTHONDIR;
}

void set_python_environment() {
    const char *given = ::getenv("PYTHONPATH");
    ::setenv("PYTHONPATH", python_path(given == nullptr ? "" : given).c_str(), 1);
    ::setenv("PYTHONSAFEPATH", "1", 1);
}

}  // namespace

Result<PythonWriter> PythonWriter::start(const std::string &format, const std::string &output) {
    const char *chosen = ::getenv("DLROVER_PYTHON");
    std::string python = chosen == nullptr ? "python3" : chosen;
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return Status::from_errno("pipe");
    UniqueFd out(ends[0]), in(ends[1]);
    ::signal(SIGPIPE, SIG_IGN);
    set_python_environment();
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t defaults;
    ::sigemptyset(&defaults);
    ::sigaddset(&defaults, SIGPIPE);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out.get(), STDIN_FILENO);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    const char *words[] = {python.c_str(), "-c", program, format.c_str(), output.c_str(), nullptr};
    pid_t pid = -1;
    int error =
        ::posix_spawnp(&pid, python.c_str(), &actions, &attributes, const_cast<char **>(words), environ);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (error != 0)
        return Status::from_errno("start of " + python + " (DLROVER_PYTHON names another one)", error);
    return PythonWriter(pid, std::move(in));
}

Status PythonWriter::finish() {
    input_.reset();
    if (pid_ < 0) return {};
    int status = 0;
    pid_t pid = std::exchange(pid_, -1);
    while (::waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) return Status::from_errno("waitpid");
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
    return Status(Code::unavailable, "Python did not write it");
}

}  // namespace dlrover::cli
