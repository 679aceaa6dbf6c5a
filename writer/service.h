// SPDX-License-Identifier: Apache-2.0
// Speaks with the daemon: takes orders, hands back answers.
#pragma once

#include <optional>

#include "proto/local_client.h"
#include "writer/environment.h"
#include "writer/folder_queue.h"
#include "writer/store_queue.h"

namespace dlrover::writer {

/// Thread: one. Lives as long as the process.
class Service {
  public:
    Service(const Environment &environment, Outbox outbox, std::string node);
    [[noreturn]] void run();

  private:
    Status connect();
    void serve();
    void take(proto::LocalMessage push);
    void take_store(const proto::local::StoreObjectT &message, std::vector<UniqueFd> fds);
    void take_look(const proto::local::LookAtFolderT &message);
    void take_complete(const proto::local::CompleteCheckpointT &message);
    void send_answers();
    Ticket ticket(std::uint64_t order) const { return {connections_, order}; }

    const Environment environment_;
    Outbox outbox_;
    StoreQueue stores_;
    FolderQueue folders_;
    std::optional<proto::LocalClient> client_;
    std::shared_ptr<const Line> line_;
    Destination to_;
    std::uint64_t connections_ = 0;
};

}  // namespace dlrover::writer
