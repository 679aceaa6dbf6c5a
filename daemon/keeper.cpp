// SPDX-License-Identifier: Apache-2.0
#include "daemon/keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <syslog.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

namespace dlrover::daemon {
namespace {

using namespace std::chrono_literals;

constexpr int daemon_link_fd = 3;
constexpr int wrong_settings = 2;  ///< the daemon's exit status for options or settings that it refuses
constexpr auto patience_at_stop = 10s;
constexpr auto calm_life = 10s;        ///< a daemon that lived this long is started again at once
constexpr auto longest_wait = 5s;      ///< between two starts
constexpr auto patience_at_exit = 2s;  ///< between a daemon's end of the link and its own
constexpr auto silence_limit = 30s;    ///< a serving daemon says Ready every few seconds

void raise_descriptor_limit() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
}

sigset_t handled_signals() {
    sigset_t set;
    sigemptyset(&set);
    for (int number : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, number);
    return set;
}

/// In the child, between fork and exec.
[[noreturn]] void become_daemon(const std::vector<std::string> &command, int link, pid_t parent) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
    if (link == daemon_link_fd)
        ::fcntl(link, F_SETFD, 0);
    else
        ::dup2(link, daemon_link_fd);
    sigset_t set = handled_signals();
    ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
    ::setenv("DLROVER_KEEPER_FD", std::to_string(daemon_link_fd).c_str(), 1);
    for (const char *name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}) ::unsetenv(name);
    std::vector<char *> argv;
    for (const auto &word : command) argv.push_back(const_cast<char *>(word.c_str()));
    argv.push_back(nullptr);
    ::execv(argv[0], argv.data());
    ::syslog(LOG_ERR, "cannot start %s: %m", argv[0]);
    ::_exit(127);
}

}  // namespace

int Keeper::run() {
    // Under systemd stderr goes to the journal too: a line would stand there twice.
    int also_stderr = std::getenv("JOURNAL_STREAM") ? 0 : LOG_PERROR;
    ::openlog("dlrover-keeper", LOG_PID | also_stderr, LOG_DAEMON);
    raise_descriptor_limit();
    fd_store_.load(take_listen_fds(), store_);
    sigset_t set = handled_signals();
    ::sigprocmask(SIG_BLOCK, &set, nullptr);
    signals_.reset(::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    start_at_ = next_watchdog_ = Clock::now();
    while (!stopping_) {
        on_time();
        pollfd fds[2] = {{signals_.get(), POLLIN, 0}, {link_.get(), POLLIN, 0}};
        if (::poll(fds, 2, wait_ms()) < 0 && errno != EINTR) return 1;
        if (fds[1].revents) on_packet();
        if (fds[0].revents) on_signals();
    }
    notifier_.send("STOPPING=1");
    end_daemon(patience_at_stop);
    return exit_status_;
}

Status Keeper::start_daemon() {
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return Status::from_errno("socketpair");
    UniqueFd ours(pair[0]), theirs(pair[1]);
    timeval patience{5, 0};
    int buffer = static_cast<int>(2 * max_keeper_packet_bytes);
    ::setsockopt(ours.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    for (int fd : pair) ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    pid_t self = ::getpid();
    pid_t child = ::fork();
    if (child < 0) return Status::from_errno("fork");
    if (child == 0) become_daemon(command_, theirs.get(), self);
    daemon_ = child;
    link_ = std::move(ours);
    started_ = last_word_ = Clock::now();
    ready_ = asked_to_end_ = false;
    ++starts_;
    return {};
}

void Keeper::end_daemon(Clock::duration patience) {
    if (daemon_ <= 0) return;
    asked_to_end_ = true;
    ::kill(daemon_, SIGTERM);
    auto deadline = Clock::now() + patience;
    while (daemon_ > 0 && Clock::now() < deadline) {
        pollfd fds[2] = {{signals_.get(), POLLIN, 0}, {link_.get(), POLLIN, 0}};
        ::poll(fds, 2, 100);
        if (fds[1].revents) on_packet();
        (void)take_signals();
        reap_daemon();
    }
    if (daemon_ <= 0) return;
    ::syslog(LOG_WARNING, "the daemon does not end, it is killed");
    ::kill(daemon_, SIGKILL);
    int status = 0;
    ::waitpid(daemon_, &status, 0);
    on_daemon_death(status);
}

void Keeper::reap_daemon() {
    int status = 0;
    if (daemon_ > 0 && ::waitpid(daemon_, &status, WNOHANG) == daemon_) on_daemon_death(status);
}

void Keeper::on_daemon_death(int wait_status) {
    daemon_ = 0;
    // What it sent before it died still counts.
    if (link_) ::fcntl(link_.get(), F_SETFL, O_NONBLOCK);
    while (link_ && on_packet()) {
    }
    link_.reset();
    if (stopping_) return;
    if (WIFSIGNALED(wait_status))
        ::syslog(LOG_WARNING, "the daemon was killed by signal %d", WTERMSIG(wait_status));
    else
        ::syslog(LOG_WARNING, "the daemon ended with status %d", WEXITSTATUS(wait_status));
    if (auto status = hopeless(wait_status)) {
        ::syslog(LOG_ERR, "the daemon was never ready and is not started again");
        exit_status_ = *status;
        stopping_ = true;
        return;
    }
    bool quick = Clock::now() - started_ < calm_life;
    quick_deaths_ = quick ? std::min(quick_deaths_ + 1, 16u) : 1;
    auto wait = quick_deaths_ == 1 ? 0ms : std::chrono::milliseconds(100) * (1 << (quick_deaths_ - 2));
    start_at_ = Clock::now() + std::min<Clock::duration>(wait, longest_wait);
}

std::optional<int> Keeper::hopeless(int wait_status) const {
    if (ever_ready_ || asked_to_end_ || !WIFEXITED(wait_status)) return {};
    int status = WEXITSTATUS(wait_status);
    if (status != 0 && status != wrong_settings) return {};
    return status;
}

/// true: to start the daemon anew. A stop may also come while one is being ended for that.
bool Keeper::take_signals() {
    signalfd_siginfo info;
    bool upgrade = false;
    while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
        int number = static_cast<int>(info.ssi_signo);
        if (number == SIGTERM || number == SIGINT) stopping_ = true;
        if (number == SIGHUP) upgrade = true;
    }
    return upgrade;
}

void Keeper::on_signals() {
    if (take_signals() && !stopping_) {
        ::syslog(LOG_NOTICE, "upgrade: the daemon is started anew from %s", command_[0].c_str());
        end_daemon(patience_at_stop);
        quick_deaths_ = 0;
        start_at_ = Clock::now();
    }
    reap_daemon();
}

bool Keeper::on_packet() {
    auto packet = receive_keeper(link_.get());
    if (!packet) {
        // A daemon that closes its end is about to end by itself, with a status that is worth knowing; one
        // that talks nonsense is of no use.
        Code code = packet.status().code();
        if (code == Code::timeout) return false;
        if (daemon_ > 0 && code != Code::unavailable) ::kill(daemon_, SIGKILL);
        link_.reset();
        link_closed_at_ = Clock::now();
        return false;
    }
    last_word_ = Clock::now();
    std::uint32_t id = packet->message.id;
    auto &body = packet->message.body;
    if (auto *put = body.AsPut()) {
        int fd = packet->fd.get();
        std::vector<std::uint8_t> value = put->value;
        Status status = store_.put(put->name, std::move(put->value), std::move(packet->fd));
        if (status.ok()) fd_store_.put(put->name, value, fd);
        answer(id, status.message());
    } else if (auto *dropped = body.AsDrop()) {
        store_.drop(dropped->name, [this](const std::string &name) { fd_store_.drop(name); });
        answer(id, "");
    } else if (body.type == keeper::Body::List) {
        send_records(id);
    } else if (body.type == keeper::Body::Ready && !ready_) {
        ready_ = ever_ready_ = true;
        notifier_.send("READY=1\nSTATUS=serving, daemon pid " + std::to_string(daemon_));
    }
    return true;
}

void Keeper::answer(std::uint32_t id, std::string refused) {
    if (daemon_ <= 0) return;
    keeper::StoredT stored;
    stored.refused = std::move(refused);
    if (!send_keeper(link_.get(), make_keeper(id, std::move(stored))).ok()) ::kill(daemon_, SIGKILL);
}

void Keeper::send_records(std::uint32_t id) {
    if (daemon_ <= 0) return;
    Status status;
    for (const auto &[name, record] : store_.records()) {
        keeper::RecordT message;
        message.name = name;
        message.value = record.value;
        message.has_fd = static_cast<bool>(record.fd);
        status = send_keeper(link_.get(), make_keeper(id, std::move(message)), record.fd.get());
        if (!status.ok()) break;
    }
    keeper::EndT end;
    end.restarts = starts_ - 1;
    if (status.ok()) status = send_keeper(link_.get(), make_keeper(id, std::move(end)));
    if (!status.ok()) {
        ::syslog(LOG_ERR, "cannot hand over the records: %s", status.message().c_str());
        ::kill(daemon_, SIGKILL);
    }
}

void Keeper::on_time() {
    auto now = Clock::now();
    if (daemon_ == 0 && now >= start_at_) {
        Status status = start_daemon();
        if (!status.ok()) {
            ::syslog(LOG_ERR, "cannot start the daemon: %s", status.message().c_str());
            start_at_ = now + longest_wait;
        }
    }
    if (daemon_ > 0 && !link_ && now - link_closed_at_ > patience_at_exit) {
        ::syslog(LOG_ERR, "the daemon has closed its link and does not end, it is killed");
        link_closed_at_ = now;
        ::kill(daemon_, SIGKILL);
    }
    if (daemon_ > 0 && ready_ && now - last_word_ > silence_limit) {
        ::syslog(LOG_ERR, "the daemon hangs, it is killed");
        ready_ = false;
        ::kill(daemon_, SIGKILL);
    }
    if (notifier_.watchdog_interval() && now >= next_watchdog_) {
        notifier_.send("WATCHDOG=1");
        next_watchdog_ = now + *notifier_.watchdog_interval();
    }
}

int Keeper::wait_ms() const {
    auto until = Clock::now() + silence_limit;
    if (daemon_ == 0) until = std::min(until, start_at_);
    if (daemon_ > 0 && !link_) until = std::min<Clock::time_point>(until, link_closed_at_ + patience_at_exit);
    if (notifier_.watchdog_interval()) until = std::min(until, next_watchdog_);
    auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    return static_cast<int>(std::max<std::int64_t>(left, 0));
}

}  // namespace dlrover::daemon
