// SPDX-License-Identifier: Apache-2.0
#include "agent/spawn.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace dlrover::agent {
namespace {

constexpr int exit_not_found = 127;
constexpr int exit_not_runnable = 126;
/// Slurm tells a task its own process id; the value is filled in by the child.
constexpr std::string_view task_pid_name = "SLURM_TASK_PID=";

std::vector<char *> pointers(const std::vector<std::string> &strings) {
    std::vector<char *> result;
    for (const auto &s : strings) result.push_back(const_cast<char *>(s.c_str()));
    result.push_back(nullptr);
    return result;
}

struct Child {
    const char *file;
    char *const *argv;
    char *const *environment;
    int out, err, exec_error;
    pid_t parent;
    const char *cwd;  ///< or null
    const InheritedSignals *signals;
};

/// A group of its own, to be signalled. A session, too, only where a terminal could stop it: Linux gives each
/// session the same share of the processors (sched(7), autogroup), so that ranks which wait by sched_yield(),
/// as MPI's do, would yield to nobody.
void leave_group() {
    int terminal = ::open("/dev/tty", O_RDONLY | O_NOCTTY);
    if (terminal < 0) {
        ::setpgid(0, 0);
        return;
    }
    ::close(terminal);
    ::setsid();
}

/// Between fork and exec: nothing that allocates or locks.
[[noreturn]] void run_child(const Child &child) {
    leave_group();
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != child.parent) ::_exit(exit_not_runnable);
    int null = ::open("/dev/null", O_RDONLY);
    ::dup2(null, STDIN_FILENO);
    if (null > STDERR_FILENO) ::close(null);
    ::dup2(child.out, STDOUT_FILENO);
    ::dup2(child.err, STDERR_FILENO);
    child.signals->restore();
    if (!child.cwd || ::chdir(child.cwd) == 0) ::execvpe(child.file, child.argv, child.environment);
    int err = errno;
    (void)!::write(child.exec_error, &err, sizeof err);
    ::_exit(err == ENOENT ? exit_not_found : exit_not_runnable);
}

/// As fork(); beside: of our parent, with whom the child ends.
pid_t make_child(bool beside) {
    if (!beside) return ::fork();
    return static_cast<pid_t>(
        ::syscall(SYS_clone, CLONE_PARENT | SIGCHLD, nullptr, nullptr, nullptr, nullptr));
}

Status make_pipe(int &given, UniqueFd &ours, UniqueFd &theirs) {
    if (given >= 0) return {};
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return Status::from_errno("pipe2");
    ours.reset(ends[0]);
    theirs.reset(ends[1]);
    given = ends[1];
    return {};
}

}  // namespace

InheritedSignals InheritedSignals::take(const sigset_t &blocked) {
    InheritedSignals inherited{};
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    ::sigprocmask(SIG_BLOCK, &blocked, &inherited.mask);
    ::sigaction(SIGPIPE, &ignore, &inherited.pipe);
    return inherited;
}

void InheritedSignals::restore() const {
    ::sigaction(SIGPIPE, &pipe, nullptr);
    ::sigprocmask(SIG_SETMASK, &mask, nullptr);
}

std::string find_program(const std::string &name) {
    if (name.find('/') != std::string::npos) return name;
    const char *path = std::getenv("PATH");
    std::string folders = std::string(path ? path : "/bin:/usr/bin") + ":.";
    std::string not_executable;
    for (std::size_t at = 0, end; at < folders.size(); at = end + 1) {
        end = std::min(folders.find(':', at), folders.size());
        std::string folder = folders.substr(at, end - at);
        std::string file = (folder.empty() ? "." : folder) + "/" + name;
        struct stat st {};
        if (::stat(file.c_str(), &st) != 0 || !S_ISREG(st.st_mode)) continue;
        if (::access(file.c_str(), X_OK) == 0) return file;
        if (not_executable.empty()) not_executable = file;
    }
    return not_executable.empty() ? "./" + name : not_executable;
}

std::string why_not_run(const std::string &name, int error) {
    std::string text = "can not run " + name + ": " + std::strerror(error);
    bool value = !name.empty() && name.find_first_not_of("0123456789:") == std::string::npos;
    return value ? text + " (a value is written with an equals sign: --dlrover-elastic=" + name + ")" : text;
}

int read_exec_error(const UniqueFd &pipe) {
    int error = 0;
    return ::read(pipe.get(), &error, sizeof error) == sizeof error ? error : 0;
}

Result<Spawned> spawn(const SpawnRequest &request) {
    Spawned spawned;
    UniqueFd out, err, exec_error;
    Child child{};
    child.out = request.stdout_fd;
    child.err = request.stderr_fd;
    child.exec_error = -1;
    DLROVER_TRY(make_pipe(child.out, spawned.stdout_pipe, out));
    DLROVER_TRY(make_pipe(child.err, spawned.stderr_pipe, err));
    DLROVER_TRY(make_pipe(child.exec_error, spawned.exec_error, exec_error));
    std::vector<std::string> environment = request.environment;
    auto argv_pointers = pointers(request.argv);
    auto environment_pointers = pointers(environment);
    std::string file = request.file.empty() ? find_program(request.argv.front()) : request.file;
    child.file = file.c_str();
    child.argv = argv_pointers.data();
    child.environment = environment_pointers.data();
    child.parent = request.beside ? ::getppid() : ::getpid();
    child.cwd = request.cwd.empty() ? nullptr : request.cwd.c_str();
    child.signals = &request.signals;
    spawned.pid = make_child(request.beside);
    if (spawned.pid < 0) return Status::from_errno("fork");
    if (spawned.pid == 0) {
        char task_pid[48];
        for (char *&entry : environment_pointers)
            if (entry && std::string_view(entry).starts_with(task_pid_name)) {
                std::snprintf(task_pid, sizeof task_pid, "%s%d", task_pid_name.data(), ::getpid());
                entry = task_pid;
            }
        run_child(child);
    }
    return spawned;
}

}  // namespace dlrover::agent
