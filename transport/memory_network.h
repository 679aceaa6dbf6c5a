// SPDX-License-Identifier: Apache-2.0
// The network's in-memory twin for tests: delay, loss, cuts, by the loop's time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>

#include "common/event_loop.h"
#include "transport/peer_network.h"

namespace dlrover::transport {

/// Thread: the loop's. Must outlive the networks it made.
class MemoryHub {
  public:
    struct Options {
        EventLoop::Time delay = std::chrono::microseconds(100);
        EventLoop::Time connect_delay = std::chrono::milliseconds(1);
        double loss = 0;  ///< part of the messages that vanish, by `seed`
        std::uint64_t seed = 1;
    };
    MemoryHub(EventLoop &loop, Options options) : loop_(loop), options_(options), random_(options.seed | 1) {}

    std::unique_ptr<PeerNetwork> join(const std::string &node);
    /// Messages vanish without a word until healed; links look up, as with a cut cable.
    void cut(const std::string &a, const std::string &b);
    void heal(const std::string &a, const std::string &b);
    /// Both sides see the link go down; it comes back by itself while wanted.
    void reset(const std::string &a, const std::string &b);
    /// That node's daemon is of a version that takes no later kind.
    void make_older(const std::string &node, PeerEnvelope::Kind newest) {
        newest_kinds_[node] = static_cast<std::uint8_t>(newest);
    }

  private:
    class Network;
    using Pair = std::pair<std::string, std::string>;
    static Pair pair_of(const std::string &a, const std::string &b) {
        return a < b ? Pair(a, b) : Pair(b, a);
    }
    void consider(const std::string &a, const std::string &b);
    void set_up(const Pair &pair, bool up);
    void leave(const std::string &node);
    void carry(const std::string &from, const std::string &to, PeerEnvelope envelope);
    bool lost();

    EventLoop &loop_;
    Options options_;
    std::uint64_t random_;
    std::map<std::string, Network *> members_;
    std::map<std::string, std::map<std::string, unsigned>> wanted_;
    std::map<Pair, std::uint64_t> up_;  ///< links, with a number that tells one life from the next
    std::set<Pair> cut_;
    std::map<std::string, std::uint8_t> newest_kinds_;
    std::uint64_t lives_ = 0;
    std::map<std::uint64_t, EventLoop::Handle> flying_;
    std::uint64_t next_flight_ = 0;
};

}  // namespace dlrover::transport
