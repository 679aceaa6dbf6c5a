// SPDX-License-Identifier: Apache-2.0
// Takes the daemon's orders, hands back answers.
#pragma once

#include "helper/session.h"
#include "writer/environment.h"
#include "writer/folder_queue.h"
#include "writer/life_sign.h"
#include "writer/store_queue.h"

namespace dlrover::writer {

/// Thread: one. Lives as long as the process.
class Service {
  public:
    Service(const Environment &environment, Outbox outbox, std::string node);
    [[noreturn]] void run();

  private:
    Status greet(proto::LocalClient &client);
    void take(proto::LocalMessage push);
    void lose();
    void take_store(const proto::local::StoreObjectT &message, std::vector<UniqueFd> fds);
    void take_look(const proto::local::LookAtFolderT &message);
    void take_test(const proto::local::TestFolderT &message);
    void take_complete(const proto::local::CompleteCheckpointT &message);
    Ticket ticket(std::uint64_t order) const { return session_.ticket(order); }

    const Environment environment_;
    Outbox outbox_;
    StoreQueue stores_;
    FolderQueue folders_;
    LifeSign life_sign_;
    helper::Session session_;
    std::shared_ptr<const Line> line_;
    Destination to_;
};

}  // namespace dlrover::writer
