// SPDX-License-Identifier: Apache-2.0
// Direct modex of one generation: what ranks of other nodes have put, asked for one by one. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "pmix_server/courier.h"

namespace dlrover::pmix {

class ModexTable {
  public:
    using Token = std::uint64_t;
    struct Hooks {
        std::function<void(std::uint32_t to, const Message &message)> send;
        /// Once for each request that was taken.
        std::function<void(Token token, Outcome outcome, const proto::Bytes &data)> finish;
        /// What has this rank of ours put? The answer goes to answer(), at any time later.
        std::function<void(std::uint32_t from, std::uint64_t number, std::uint32_t rank)> look_up;
    };
    static constexpr std::size_t max_open = 65536;

    explicit ModexTable(Hooks hooks) : hooks_(std::move(hooks)) {}

    /// resource_exhausted: nothing follows.
    Status ask(std::uint32_t place, std::uint32_t rank, Time deadline, Token token);
    void answer(std::uint32_t to, std::uint64_t number, Outcome outcome, proto::Bytes data);
    /// Fetch and Data of another node.
    void receive(std::uint32_t from, Message message);
    void tick(Time now);
    Time next_tick() const;
    void lose(std::uint32_t place);
    void stop();

  private:
    struct Request {
        std::uint32_t place = 0;
        Token token = 0;
        Time deadline = Time::max();
    };
    template <typename Is>
    void end_those(Outcome outcome, Is is);

    Hooks hooks_;
    std::map<std::uint64_t, Request> open_;  ///< by number
    std::uint64_t last_number_ = 0;
};

}  // namespace dlrover::pmix
