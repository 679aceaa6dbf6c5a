// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "proto/local_codec.h"

/// Listens on a socket (its own, or the given one), greets, and answers every other message by `answer` (no
/// answer: silence). Keeps what came.
class FakeDaemon {
  public:
    using Message = dlrover::proto::local::MessageT;
    using Answer = std::function<std::vector<Message>(const Message &)>;

    /// Throws where it can not listen.
    explicit FakeDaemon(Answer answer, std::string path = "");
    ~FakeDaemon();
    FakeDaemon(const FakeDaemon &) = delete;
    FakeDaemon &operator=(const FakeDaemon &) = delete;

    const std::string &path() const { return path_; }
    std::vector<Message> received();

    /// Done to every request.
    static std::vector<Message> agree(const Message &message);

  private:
    void accept_connections();
    void serve(int connection);

    Answer answer_;
    std::string dir_;  // empty: the socket was given
    std::string path_;
    dlrover::UniqueFd listener_;
    std::mutex mutex_;
    std::vector<Message> received_;
    std::thread thread_;
};
