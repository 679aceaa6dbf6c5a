// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/allocator.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/units.h"

namespace dlrover::pmix {
namespace {

struct Actions {
    posix_spawn_file_actions_t of_files;
    posix_spawnattr_t attributes;

    /// All that it says goes to `out`: what keeps it from its work is told by the linker, or by libslurm.
    explicit Actions(int out) {
        ::posix_spawn_file_actions_init(&of_files);
        ::posix_spawn_file_actions_addopen(&of_files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
        ::posix_spawn_file_actions_adddup2(&of_files, out, STDOUT_FILENO);
        ::posix_spawn_file_actions_adddup2(&of_files, out, STDERR_FILENO);
        sigset_t all, none;
        ::sigfillset(&all);
        ::sigemptyset(&none);
        ::posix_spawnattr_init(&attributes);
        ::posix_spawnattr_setsigdefault(&attributes, &all);
        ::posix_spawnattr_setsigmask(&attributes, &none);
        ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    }
    Actions(const Actions &) = delete;
    Actions &operator=(const Actions &) = delete;
    ~Actions() {
        ::posix_spawnattr_destroy(&attributes);
        ::posix_spawn_file_actions_destroy(&of_files);
    }
};

std::vector<char *> pointers(const std::vector<std::string> &words) {
    std::vector<char *> all;
    for (const std::string &word : words) all.push_back(const_cast<char *>(word.c_str()));
    all.push_back(nullptr);
    return all;
}

}  // namespace

void Allocator::ask(const proto::AllocationOrder &order, Answered answered) {
    if (runs_.size() >= most_orders)
        return answered(Status(Code::resource_exhausted,
                               std::to_string(most_orders) + " requests of this node to Slurm wait already"));
    Run made{proto::encode_order(order), std::move(answered), UniqueFd(), UniqueFd()};
    made.words.insert(made.words.begin(), program_.path);
    auto run = runs_.insert(runs_.end(), std::move(made));
    run->deadline = loop_.after(program_.limit, [this, run] {
        finish(run,
               Status(Code::timeout, "Slurm has not answered within " + format_duration(program_.limit)));
    });
    start_next();
}

void Allocator::start_next() {
    auto run = std::ranges::find_if(runs_, [](const Run &one) { return !one.output; });
    if (run == runs_.end() || std::distance(runs_.begin(), run) >= std::ptrdiff_t{most_at_once}) return;
    if (Status started = start(*run); !started.ok()) return finish(run, std::move(started));
    run->readable = loop_.when_readable(run->output.get(), [this, run] { on_readable(run); });
}

Status Allocator::start(Run &run) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return Status::from_errno("pipe2");
    UniqueFd ours(ends[0]), theirs(ends[1]);
    if (::fcntl(ours.get(), F_SETFL, O_NONBLOCK) != 0) return Status::from_errno("fcntl");
    Actions actions(theirs.get());
    pid_t pid = 0;
    int error = ::posix_spawn(&pid, program_.path.c_str(), &actions.of_files, &actions.attributes,
                              pointers(run.words).data(), pointers(program_.environment).data());
    if (error != 0)
        return Status(Code::unsupported, "can not run " + program_.path + ": " + std::strerror(error));
    // None: it has ended already, and its number may be another's.
    run.process.reset(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    run.output = std::move(ours);
    return {};
}

void Allocator::on_readable(Place run) {
    char part[4096];
    ssize_t n = ::read(run->output.get(), part, sizeof part);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    std::size_t last_line = run->said.rfind('\n') + 1;  // npos + 1 is 0
    if (n > 0) run->said.append(part, static_cast<std::size_t>(n));
    if (auto answer = proto::find_answer(std::string_view(run->said).substr(last_line)))
        return finish(run, std::move(*answer));
    if (run->said.size() > longest_answer)
        return finish(run, Status(Code::corrupt, "dlrover-allocate says too much"));
    if (n > 0) return;
    finish(run,
           Status(Code::corrupt, "dlrover-allocate ends without an answer: " + proto::last_words(run->said)));
}

/// And with the process, where it has not ended.
void Allocator::finish(Place run, Result<proto::AllocationState> answer) {
    Run done = std::move(*run);
    runs_.erase(run);
    if (done.process) ::syscall(SYS_pidfd_send_signal, done.process.get(), SIGKILL, nullptr, 0);
    done.answered(std::move(answer));
    start_next();
}

std::string allocate_program() {
    char path[PATH_MAX];
    ssize_t n = ::readlink("/proc/self/exe", path, sizeof path);
    std::string own(path, n > 0 ? static_cast<std::size_t>(n) : 0);
    return own.substr(0, own.rfind('/')) + "/dlrover-allocate";
}

std::vector<std::string> allocate_environment(const std::vector<std::string> &environment) {
    std::vector<std::string> kept;
    for (const std::string &variable : environment)
        for (const char *name :
             {"SLURM_CONF=", "SLURM_CONF_SERVER=", "SLURM_JWT=", "LD_LIBRARY_PATH=", "TZ="})
            if (variable.starts_with(name)) kept.push_back(variable);
    return kept;
}

}  // namespace dlrover::pmix
