// SPDX-License-Identifier: Apache-2.0
// A real keeper with a real dlroverd in standalone mode, and what plays module, agents and workers to it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>

#include "base/ids.h"
#include "proto/local_client.h"

namespace dlrover::test {

namespace local = proto::local;

constexpr std::chrono::milliseconds patience{20000};

/// Ends keeper and daemon at its own end.
class DaemonProcess {
  public:
    explicit DaemonProcess(const std::string &settings = "");
    ~DaemonProcess();
    DaemonProcess(const DaemonProcess &) = delete;
    DaemonProcess &operator=(const DaemonProcess &) = delete;

    proto::LocalClient connect(local::Role role);
    /// SIGKILL, and wait for the next one to serve.
    void kill_daemon();
    /// SIGHUP to the keeper, and wait for the next daemon.
    void upgrade();
    pid_t daemon_pid() const;
    pid_t keeper_pid() const { return keeper_; }
    /// Ends the keeper by `signal` and waits for it.
    void stop(int signal);
    const std::string &socket() const { return socket_; }
    std::string log() const;

  private:
    void wait_for_other_than(pid_t old);
    std::string dir_, socket_;
    pid_t keeper_ = 0;
};

proto::StepRegistrationT make_step(std::uint16_t tasks, std::uint32_t max_restarts = 3);

struct Agent {
    proto::LocalClient client;
    std::uint16_t task;
    /// Says AgentHello.
    Agent(DaemonProcess &daemon, std::uint16_t number, GenerationId resumed = {}, bool staying = false);
    /// The next push of this type; lease renewals in between are passed over.
    local::MessageT await(local::Body type);
    void started(const local::WorldPublishedT &world, std::uint32_t pid);
    void exited(const local::WorldPublishedT &world, int wait_status, bool stopped_by_us = false);
    void stopped(GenerationId generation);
};

struct Worker {
    proto::LocalClient client;
    UniqueFd page;
    local::WorkerWelcomeT welcome;
    /// Says WorkerHello and checks that it is welcome.
    Worker(DaemonProcess &daemon, const local::WorldPublishedT &world, std::uint32_t local_rank,
           bool stays = false);

    struct Grant {
        local::SlotGrantedT answer;
        std::vector<UniqueFd> fds;
    };
    Grant begin(std::uint64_t step, std::uint64_t bytes);
    /// Fills the first segment of the slot with `value`.
    void write(const Grant &grant, char value);
    Status seal(const Grant &grant, std::uint64_t step, std::uint64_t bytes);
    /// Begins, writes, seals.
    void save(std::uint64_t step, char value);
    /// The step to restore and the first byte of the object.
    std::pair<std::int64_t, char> restore();
};

GenerationId generation_of(const local::WorldPublishedT &world);

}  // namespace dlrover::test
