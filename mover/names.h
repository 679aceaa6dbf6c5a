// SPDX-License-Identifier: Apache-2.0
// Addresses by nodes' names. What was found is believed for a while: a name server that is away holds up the
// thread that asks it.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "transport/sockets.h"

namespace dlrover::mover {

/// One thread.
class Names {
  public:
    using Clock = std::chrono::steady_clock;
    static constexpr std::chrono::minutes believed{1};
    static constexpr std::size_t most = 4096;
    using Ask = std::function<Result<std::vector<transport::SocketAddress>>(const std::string &)>;

    explicit Names(Ask ask = transport::resolve) : ask_(std::move(ask)) {}

    /// Blocks where it asks. What is older serves where nobody answers.
    Result<std::vector<transport::SocketAddress>> resolve(const std::string &name,
                                                          Clock::time_point now = Clock::now());

  private:
    static constexpr std::chrono::seconds failure_believed{30};
    struct Found {
        std::vector<transport::SocketAddress> addresses;  ///< none: it was not found, for that reason
        std::string why;
        Clock::time_point until;
    };
    std::map<std::string, Found>::iterator ask(const std::string &name, Clock::time_point now);
    const Ask ask_;
    std::map<std::string, Found> found_;
};

}  // namespace dlrover::mover
