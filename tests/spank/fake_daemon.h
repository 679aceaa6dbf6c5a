// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "proto/local_codec.h"

/// Listens on a socket of its own, greets, and answers every other message by `answer` (no answer: silence).
/// Keeps what came.
class FakeDaemon {
  public:
    using Message = dlrover::proto::local::MessageT;
    using Answer = std::function<std::vector<Message>(const Message &)>;

    explicit FakeDaemon(Answer answer);
    ~FakeDaemon();
    FakeDaemon(const FakeDaemon &) = delete;
    FakeDaemon &operator=(const FakeDaemon &) = delete;

    std::string path() const { return dir_ + "/s"; }
    std::vector<Message> received();

    /// Done to every request.
    static std::vector<Message> agree(const Message &message);

  private:
    void accept_connections();
    void serve(int connection);

    Answer answer_;
    std::string dir_;
    dlrover::UniqueFd listener_;
    std::mutex mutex_;
    std::vector<Message> received_;
    std::thread thread_;
};
