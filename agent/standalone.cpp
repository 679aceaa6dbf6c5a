// SPDX-License-Identifier: Apache-2.0
#include "agent/standalone.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "agent/files.h"
#include "base/process_tree.h"
#include "proto/local_client.h"

namespace dlrover::agent {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto start_limit = 10s;
constexpr auto stop_limit = 3s;
constexpr std::size_t shown_log_bytes = 2000;

[[noreturn]] void exec_keeper(const char *const *argv, const std::string &log, pid_t parent) {
    ::setsid();
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (::getppid() != parent) ::_exit(1);
    int null = ::open("/dev/null", O_RDONLY);
    int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    ::dup2(null, STDIN_FILENO);
    ::dup2(out, STDOUT_FILENO);
    ::dup2(out, STDERR_FILENO);
    ::execv(argv[0], const_cast<char *const *>(argv));
    ::_exit(127);
}

}  // namespace

Standalone::Standalone(Standalone &&other) noexcept
    : dir_(std::exchange(other.dir_, {})), keeper_(std::exchange(other.keeper_, 0)), job_(other.job_) {}

Result<Standalone> Standalone::start(const StandaloneSpec &spec) {
    Standalone run;
    auto dir = make_private_dir("dlrover-run");
    if (!dir) return dir.take_status();
    run.dir_ = std::move(*dir);
    run.job_ = JobId(static_cast<std::uint32_t>(::getpid()));
    DLROVER_TRY(run.start_keeper());
    if (Status s = run.register_run(spec); !s.ok()) {
        std::string log = run.log();
        return std::move(s).with_context("the private daemon can not be used" +
                                         (log.empty() ? std::string() : " (it said: " + log + ")"));
    }
    return run;
}

std::string Standalone::log() const {
    std::string text = read_tail(dir_ + "/log", shown_log_bytes);
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return text;
}

Status Standalone::start_keeper() {
    auto keeper = find_own_program("dlrover-keeper");
    if (!keeper) return keeper.take_status();
    auto daemon = find_own_program("dlroverd");
    if (!daemon) return daemon.take_status();
    std::string path = socket(), log_path = dir_ + "/log";
    const char *argv[] = {keeper->c_str(), "--daemon", daemon->c_str(), "--",
                          "--standalone",  "--socket", path.c_str(),    nullptr};
    pid_t parent = ::getpid();
    keeper_ = ::fork();
    if (keeper_ < 0) return Status::from_errno("fork");
    if (keeper_ == 0) exec_keeper(argv, log_path, parent);
    return {};
}

Status Standalone::register_run(const StandaloneSpec &spec) {
    auto deadline = Clock::now() + start_limit;
    auto client = proto::LocalClient::connect(socket(), proto::local::Role::Spank, 1000ms);
    while (!client.ok()) {
        int wait_status = 0;
        if (::waitpid(keeper_, &wait_status, WNOHANG) == keeper_) {
            keeper_ = 0;
            return Status(Code::unavailable, "dlrover-keeper ended at once");
        }
        if (Clock::now() >= deadline) return client.take_status();
        ::poll(nullptr, 0, 2);
        client = proto::LocalClient::connect(socket(), proto::local::Role::Spank, 1000ms);
    }
    proto::local::RegisterStepT request;
    request.step = std::make_unique<proto::StepRegistrationT>();
    auto &step = *request.step;
    step.cluster = "standalone";
    step.job_id = job_.value();
    step.uid = ::geteuid();
    step.gid = ::getegid();
    step.node_names = {client->server().node};
    step.tasks_per_node = {1};
    step.argv = spec.argv;
    step.cwd = current_dir();
    step.options = std::make_unique<proto::ElasticOptionsT>();
    step.options->min_nodes = step.options->max_nodes = 1;
    step.options->max_restarts = spec.max_restarts;
    step.options->name = spec.name;
    step.options->redundancy = "single";
    return client->call(std::move(request), 5000ms).take_status();
}

void Standalone::end() {
    if (keeper_ > 0) {
        ::kill(keeper_, SIGTERM);
        auto deadline = Clock::now() + stop_limit;
        while (::waitpid(keeper_, nullptr, WNOHANG) == 0 && Clock::now() < deadline) ::poll(nullptr, 0, 2);
        ::kill(keeper_, SIGKILL);
        // The daemon is an orphan of ours (subreaper) if its keeper did not end it.
        (void)kill_descendants(::getpid());
        // A process that hangs in the kernel is not waited for.
        deadline = Clock::now() + stop_limit;
        for (pid_t ended = 1; ended >= 0 && Clock::now() < deadline;)
            if ((ended = ::waitpid(-1, nullptr, WNOHANG)) == 0) ::poll(nullptr, 0, 2);
        keeper_ = 0;
    }
    remove_tree_within(std::exchange(dir_, {}), stop_limit);
}

}  // namespace dlrover::agent
