// SPDX-License-Identifier: Apache-2.0
#include "agent/guard.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "agent/files.h"
#include "agent/process_tree.h"
#include "base/fault.h"

namespace dlrover::agent {
namespace {

constexpr int passed_on[] = {SIGTERM, SIGINT,  SIGHUP,  SIGUSR1, SIGUSR2,
                             SIGQUIT, SIGCONT, SIGTSTP, SIGALRM, SIGWINCH};

bool is_ignored(int signal) {
    struct sigaction now {};
    return ::sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

int open_pidfd(pid_t pid) {
    return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
}

void open_standard_streams() {
    for (int fd = ::open("/dev/null", O_RDWR); fd >= 0; fd = ::open("/dev/null", O_RDWR)) {
        if (fd <= STDERR_FILENO) continue;
        ::close(fd);
        break;
    }
}

constexpr timespec helper_pause{0, 500 * 1000 * 1000};

struct Helper {
    std::string program;
    pid_t pid = 0;  ///< 0: does not run
};

std::vector<char *> pointers(const std::vector<std::string> &words) {
    std::vector<char *> out;
    for (const std::string &word : words) out.push_back(const_cast<char *>(word.c_str()));
    out.push_back(nullptr);
    return out;
}

/// An agent runs, or the guard waits until only `spared` is left.
class Guard {
  public:
    Guard(const GuardConfig &config, const InheritedSignals &signals, pid_t agent)
        : config_(config), signals_(signals), agent_(agent) {
        for (const std::string &program : config.helpers) helpers_.push_back({program});
    }

    int run(const sigset_t &taken) {
        start_helpers();
        while (!done_) {
            int signal = ::sigtimedwait(&taken, nullptr, is_helper_missing() ? &helper_pause : nullptr);
            if (signal < 0 && errno == EAGAIN)
                start_helpers();
            else if (signal == SIGCHLD)
                reap();
            else if (signal > 0)
                pass_on(signal);
        }
        fault_point("guard_agent_ended");
        take_leave(taken);
        clear_rest(taken);
        fault_point("guard_before_exit");
        return exit_code_;
    }

  private:
    void pass_on(int signal) {
        fault_point("guard_before_signal");
        ::kill(agent_, signal);
        fault_point("guard_signal_passed");
        // The shell waits for this process to stop; the agent itself goes on, its workers are stopped.
        if (signal == SIGTSTP) ::raise(SIGSTOP);
    }

    bool is_helper_missing() const {
        return std::any_of(helpers_.begin(), helpers_.end(), [](const Helper &h) { return h.pid == 0; });
    }

    void start_helpers() {
        for (Helper &helper : helpers_)
            if (helper.pid == 0 && !done_) start(helper);
    }

    /// It ends with this process; the agent, in a tree of its own, does not see it.
    void start(Helper &helper) {
        char *argv[] = {helper.program.data(), nullptr};
        auto environment = pointers(config_.helper_environment);
        pid_t guard = ::getpid();
        helper.pid = ::fork();
        if (helper.pid > 0) return;
        if (helper.pid < 0) {
            helper.pid = 0;
            return;
        }
        ::setsid();
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (::getppid() != guard) ::_exit(1);
        int null = ::open("/dev/null", O_RDONLY);
        if (null >= 0) ::dup2(null, STDIN_FILENO);
        signals_.restore();
        ::execve(argv[0], argv, environment.data());
        ::_exit(127);
    }

    void forget(Helper &helper) {
        fault_point("guard_helper_ended");
        helper.pid = 0;
    }

    /// Returns whether a child other than `spared` may be left.
    bool reap() {
        int wait_status = 0;
        bool spared_lives = false;
        for (;;) {
            pid_t pid = ::waitpid(-1, &wait_status, WNOHANG);
            if (pid == agent_ && !done_) {
                done_ = true;
                exit_code_ = WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status);
            }
            for (Helper &helper : helpers_)
                if (pid > 0 && pid == helper.pid) forget(helper);
            if (pid == 0) break;
            if (pid < 0 && errno != EINTR) return false;
        }
        spared_lives = config_.spared != 0 && ::kill(config_.spared, 0) == 0;
        return !spared_lives || !kill_descendants(::getpid(), config_.spared);
    }

    /// Ranks of other agents may not have ended yet.
    void take_leave(const sigset_t &taken) {
        auto last = std::find_if(helpers_.begin(), helpers_.end(), [this](const Helper &helper) {
            return helper.pid != 0 && helper.program == config_.last_helper;
        });
        if (last == helpers_.end()) return;
        ::kill(last->pid, SIGUSR2);
        constexpr timespec interval{0, 10 * 1000 * 1000};
        for (int i = 0; i < 100 && last->pid != 0; ++i) {
            ::sigtimedwait(&taken, nullptr, &interval);
            reap();
        }
    }

    /// The agent ends its tree itself; this is for an agent that was killed.
    void clear_rest(const sigset_t &taken) {
        constexpr timespec patience{0, 10 * 1000 * 1000};
        while (kill_descendants(::getpid(), config_.spared), reap())
            ::sigtimedwait(&taken, nullptr, &patience);
    }

    const GuardConfig &config_;
    const InheritedSignals &signals_;
    pid_t agent_;
    std::vector<Helper> helpers_;
    bool done_ = false;
    int exit_code_ = 1;
};

[[noreturn]] void run_agent(GuardedContext &context,
                            const std::function<int(const GuardedContext &)> &agent) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    ::_exit(agent(context));
}

}  // namespace

GuardedContext prepare_signals() {
    open_standard_streams();
    GuardedContext context;
    ::sigemptyset(&context.taken);
    ::sigaddset(&context.taken, SIGCHLD);
    for (int signal : passed_on)
        if (!is_ignored(signal)) ::sigaddset(&context.taken, signal);
    sigset_t blocked = context.taken;
    ::sigaddset(&blocked, SIGTTOU);  // output of a background job
    context.signals = InheritedSignals::take(blocked);
    return context;
}

int run_guarded(const GuardConfig &config, GuardedContext context,
                const std::function<int(const GuardedContext &)> &agent) {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (pid_t pid : {::getpid(), config.watch_parent ? ::getppid() : 0})
        if (int fd = pid > 1 ? open_pidfd(pid) : -1; fd >= 0) context.life_lines.push_back(fd);
    bool old_kernel = context.life_lines.empty();
    if (old_kernel && config.watch_parent) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    pid_t child = ::fork();
    if (child < 0) {
        std::perror("dlrover-agent: fork");
        return 71;
    }
    if (child == 0) {
        if (old_kernel) ::prctl(PR_SET_PDEATHSIG, SIGTERM);  // no pidfds: an ordinary end must do
        run_agent(context, agent);
    }
    int code = Guard(config, context.signals, child).run(context.taken);
    remove_tree(config.scratch);
    return code;
}

}  // namespace dlrover::agent
