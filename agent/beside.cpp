// SPDX-License-Identifier: Apache-2.0
#include "agent/beside.h"

#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace dlrover::agent {
namespace {

constexpr std::size_t most_at_once = 64;

}  // namespace

Status Beside::spawn_for(const proto::local::StartStepT &order, Running &out) const {
    if (order.argv.empty()) return Status(Code::invalid_argument, "no program is named");
    if (running_.size() >= most_at_once || running_.contains(order.order))
        return Status(Code::resource_exhausted, "too many steps have been started here");
    // By its name: the child looks for it, in folders that may take their time.
    SpawnRequest request{order.argv,    order.argv.front(), order.environment, STDOUT_FILENO,
                         STDERR_FILENO, signals_,           order.cwd,         true};
    auto spawned = spawn(request);
    if (!spawned) return spawned.take_status();
    out.name = order.argv.front();
    out.exec_error = std::move(spawned->exec_error);
    out.pidfd.reset(static_cast<int>(::syscall(SYS_pidfd_open, spawned->pid, 0)));
    return out.pidfd ? Status() : Status::from_errno("pidfd_open");
}

void Beside::start(const proto::local::StartStepT &order) {
    Running running;
    Status status = spawn_for(order, running);
    int fd = running.pidfd.get();
    if (status.ok())
        status = loop_.watch(fd, EPOLLIN, [this, id = order.order](std::uint32_t) { on_end(id); });
    if (status.ok()) {
        running_[order.order] = std::move(running);
        return;
    }
    proto::local::StepEndedT ended;
    ended.order = order.order;
    ended.text = status.message();
    ended_(std::move(ended));
}

void Beside::on_end(std::uint64_t order) {
    auto it = running_.find(order);
    if (it == running_.end()) return;
    loop_.forget(it->second.pidfd.get());
    proto::local::StepEndedT ended;
    ended.order = order;
    if (int error = read_exec_error(it->second.exec_error)) ended.text = why_not_run(it->second.name, error);
    running_.erase(it);
    ended_(std::move(ended));
}

}  // namespace dlrover::agent
