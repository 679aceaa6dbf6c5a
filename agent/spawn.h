// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace dlrover::agent {

/// The signal mask and SIGPIPE's disposition a program of ours was started with; workers get them back.
struct InheritedSignals {
    sigset_t mask;
    struct sigaction pipe;
    /// Saves them, blocks `blocked`, ignores SIGPIPE.
    static InheritedSignals take(const sigset_t &blocked);
    /// Async-signal-safe.
    void restore() const;
};

struct SpawnRequest {
    std::vector<std::string> argv;
    std::string file;                      ///< that is run; empty: what find_program() finds for argv[0]
    std::vector<std::string> environment;  ///< "NAME=value"
    int stdout_fd = -1;                    ///< -1: a pipe is made
    int stderr_fd = -1;
    InheritedSignals signals;
    std::string cwd;  ///< empty: ours
    /// Our parent's child, not ours: in no tree that ends with ours, and reaped there.
    bool beside = false;
};

struct Spawned {
    pid_t pid = 0;
    UniqueFd stdout_pipe, stderr_pipe;  ///< our ends, of the pipes that were made
    UniqueFd exec_error;                ///< for read_exec_error()
};

/// The file to run for a program's name, so that every name works that slurmstepd would run: one without a
/// slash is looked for in our own PATH, then in the working folder. A file that is not executable is taken
/// only where no other is, so that the user reads of the permission and not that nothing was found.
std::string find_program(const std::string &name);

/// Starts a program in a process group of its own, stdin from /dev/null; it is killed when the calling thread
/// ends. Where the program can not be run the child exits with 127 or 126 and read_exec_error() knows why.
Result<Spawned> spawn(const SpawnRequest &request);
/// Once the child has ended: the errno that kept it from running its program, 0 if it ran.
int read_exec_error(const UniqueFd &exec_error);
/// "can not run NAME: ERROR"; where the name looks like an option's value, also how that is written.
std::string why_not_run(const std::string &name, int error);

}  // namespace dlrover::agent
