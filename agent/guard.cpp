// SPDX-License-Identifier: Apache-2.0
#include "agent/guard.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <new>
#include <string>

#include "agent/files.h"
#include "agent/loop.h"
#include "base/fault.h"
#include "base/process_tree.h"

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

constexpr Loop::Duration scratch_limit{5000};
constexpr timespec helper_pause{0, 500 * 1000 * 1000};
constexpr std::chrono::seconds unkillable_after{10};

/// Shared with the agent, which says here that it is about to end.
struct Leaving {
    std::atomic<int> code{-1};  ///< its exit code, or -1
};

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
    Guard(const GuardConfig &config, const GuardedContext &context, pid_t agent, const Leaving *leaving)
        : config_(config), context_(context), agent_(agent), leaving_(leaving) {
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

    void end_with(int code) {
        done_ = true;
        exit_code_ = code;
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
        context_.signals.restore();
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
            if (pid > 0 && pid == agent_) {
                agent_ = 0;
                if (!done_)
                    end_with(WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : 128 + WTERMSIG(wait_status));
            }
            for (Helper &helper : helpers_)
                if (pid > 0 && pid == helper.pid) forget(helper);
            if (pid == 0) break;
            if (pid < 0 && errno != EINTR) return false;
        }
        if (int code = leaving_ ? leaving_->code.load() : -1; code >= 0 && !done_) end_with(code);
        spared_lives = config_.spared != 0 && ::kill(config_.spared, 0) == 0;
        return !spared_lives || agent_ != 0 || !kill_descendants(::getpid(), config_.spared);
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

    /// The agent ends its tree itself; this is for an agent that was killed, and for the helpers. What sleeps
    /// in the kernel, as a writer whose storage hangs, no signal ends: the task's end is not to wait for it.
    void clear_rest(const sigset_t &taken) {
        constexpr timespec interval{0, 10 * 1000 * 1000};
        auto limit = std::chrono::steady_clock::now() + unkillable_after;
        while (kill_descendants(::getpid(), config_.spared), reap()) {
            if (std::chrono::steady_clock::now() >= limit && may_leave_rest()) return;
            int signal = ::sigtimedwait(&taken, nullptr, &interval);
            if (signal == SIGINT || signal == SIGTERM) limit = std::chrono::steady_clock::now();
        }
    }

    /// true, and named: what is left all sleeps so. What is only slow to end is waited for.
    bool may_leave_rest() const {
        auto rest = descendants(::getpid(), config_.spared);
        std::vector<pid_t> ours{agent_};
        for (const Helper &helper : helpers_) ours.push_back(helper.pid);
        for (pid_t pid : ours)  // of one that was killed its first thread may be gone already
            if (pid != 0 && std::find(rest.begin(), rest.end(), pid) == rest.end()) rest.push_back(pid);
        if (rest.empty() || !std::all_of(rest.begin(), rest.end(), sleeps_in_kernel)) return false;
        for (pid_t pid : rest)
            say("dlrover-agent: process " + std::to_string(pid) +
                " hangs in the kernel and can not be killed: see what its file system waits for" +
                (config_.watch_parent ? "; Slurm waits for it now (UnkillableStepTimeout)\n" : "\n"));
        return true;
    }

    /// Not into a file, which may be where the others hang.
    void say(const std::string &text) const {
        if (context_.is_file[STDERR_FILENO]) return;
        pollfd ready{STDERR_FILENO, POLLOUT, 0};
        if (::poll(&ready, 1, 0) == 1) (void)!::write(STDERR_FILENO, text.data(), text.size());
    }

    const GuardConfig &config_;
    const GuardedContext &context_;
    pid_t agent_;  ///< 0: it has gone
    const Leaving *leaving_;
    std::vector<Helper> helpers_;
    bool done_ = false;
    int exit_code_ = 1;
};

/// A thread that hangs in the kernel, or a file whose close does, keeps this process, and what is open in it,
/// from its end. No file is touched here.
void tell_the_end(int code, const GuardedContext &context, Leaving *leaving) {
    if (!leaving) return;
    int null = ::open("/dev/null", O_RDWR);
    for (std::size_t fd = 0; fd < context.is_file.size(); ++fd)
        if (!context.is_file[fd]) ::dup2(null, static_cast<int>(fd));
    leaving->code = code;
    ::kill(::getppid(), SIGCHLD);
}

[[noreturn]] void run_agent(GuardedContext &context, Leaving *leaving,
                            const std::function<int(const GuardedContext &)> &agent) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    int code = agent(context);
    tell_the_end(code, context, leaving);
    ::_exit(code);
}

}  // namespace

GuardedContext prepare_signals() {
    open_standard_streams();
    GuardedContext context;
    for (std::size_t fd = 0; fd < context.is_file.size(); ++fd) {
        struct stat about {};
        context.is_file[fd] = ::fstat(static_cast<int>(fd), &about) == 0 && S_ISREG(about.st_mode);
    }
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
    void *page = ::mmap(nullptr, sizeof(Leaving), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    Leaving *leaving = page == MAP_FAILED ? nullptr : new (page) Leaving;
    pid_t child = ::fork();
    if (child < 0) {
        std::perror("dlrover-agent: fork");
        return 71;
    }
    if (child == 0) {
        if (old_kernel) ::prctl(PR_SET_PDEATHSIG, SIGTERM);  // no pidfds: an ordinary end must do
        run_agent(context, leaving, agent);
    }
    int code = Guard(config, context, child, leaving).run(context.taken);
    remove_tree_within(config.scratch, scratch_limit);
    return code;
}

}  // namespace dlrover::agent
