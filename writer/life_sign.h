// SPDX-License-Identifier: Apache-2.0
// Tells the daemon that storage answers, so that it knows what is slow from what hangs.
#pragma once

#include <atomic>
#include <cstdint>

#include "ckpt/storage_answers.h"
#include "helper/outbox.h"

namespace dlrover::writer {

/// Thread of the members: any. Lives as long as the process.
class LifeSign {
  public:
    explicit LifeSign(helper::Outbox &outbox) : outbox_(outbox) {}
    LifeSign(const LifeSign &) = delete;
    LifeSign &operator=(const LifeSign &) = delete;
    void start();
    /// Who is told from now on.
    void speak_to(std::uint64_t connection) noexcept { connection_ = connection; }

  private:
    [[noreturn]] void run();

    helper::Outbox &outbox_;
    std::atomic<std::uint64_t> connection_{0};
    std::uint64_t told_ = ckpt::storage_answers;  // before the thread begins: it may begin after an answer
};

}  // namespace dlrover::writer
