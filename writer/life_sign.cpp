// SPDX-License-Identifier: Apache-2.0
#include "writer/life_sign.h"

#include <chrono>
#include <thread>

namespace dlrover::writer {
namespace {

constexpr std::chrono::seconds pause{1};

}  // namespace

void LifeSign::start() {
    std::thread([this] { run(); }).detach();
}

void LifeSign::run() {
    for (;;) {
        ckpt::storage_answers.wait(told_);
        told_ = ckpt::storage_answers;
        outbox_.put(helper::Ticket{connection_, 0}, proto::local::StorageAnsweredT{});
        std::this_thread::sleep_for(pause);
    }
}

}  // namespace dlrover::writer
