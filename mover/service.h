// SPDX-License-Identifier: Apache-2.0
// Takes the daemon's orders, hands back answers.
#pragma once

#include <optional>

#include "helper/environment.h"
#include "helper/session.h"
#include "mover/arrivals.h"
#include "mover/fold_queue.h"
#include "mover/measure.h"
#include "mover/names.h"
#include "mover/send_queue.h"

namespace dlrover::mover {

/// Thread: one. Lives as long as the process.
class Service {
  public:
    Service(const helper::Environment &environment, helper::Outbox outbox);
    [[noreturn]] void run();

  private:
    Status greet(proto::LocalClient &client);
    Status listen(const proto::local::MoverWelcomeT &welcome, proto::local::MoverReadyT &ready);
    void take(proto::LocalMessage push);
    void lose();
    void take_expect(const proto::local::ExpectObjectT &message, std::vector<UniqueFd> fds);
    void take_send(const proto::local::SendObjectT &message, std::vector<UniqueFd> fds);
    void take_measure(const proto::local::MeasureNodeT &message, std::vector<UniqueFd> fds);
    void take_fold(const proto::local::FoldObjectT &message, std::vector<UniqueFd> fds);

    const helper::Environment environment_;
    helper::Outbox outbox_;
    Names names_;
    SendQueue sends_;
    FoldQueue folds_;
    Measurer measurer_;
    helper::Session session_;
    std::optional<Arrivals> arrivals_;  ///< of the present connection
    proto::local::MoverWelcomeT welcome_;
    std::shared_ptr<transport::RateLimit> rate_;  ///< of all that is sent; none: no limit
};

}  // namespace dlrover::mover
