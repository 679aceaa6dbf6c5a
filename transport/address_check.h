// SPDX-License-Identifier: Apache-2.0
// May the node of this name call from there? Slurm's NodeAddr decides; answers are kept for a while.
#pragma once

#include <map>

#include "common/event_loop.h"
#include "common/worker_thread.h"
#include "transport/peer_session.h"

namespace dlrover::transport {

struct AddressRules {
    bool check_addresses = true, accept_guests = true;
    EventLoop::Time keep = std::chrono::seconds(60);
    std::size_t max_kept = 16384;
};

/// Thread: the loop's. Answers never come after the end of the object.
class AddressCheck {
  public:
    using Verdict = PeerSession::Verdict;
    template <typename T>
    using Answer = std::function<void(Result<T>)>;
    /// NodeAddr by node name, asked of Slurm; not_found: no such node.
    using LookUp = std::function<void(const std::string &node, Answer<std::string> answer)>;

    AddressCheck(EventLoop &loop, WorkerThread &resolver, AddressRules rules, LookUp look_up);
    ~AddressCheck() { *alive_ = false; }
    /// What the daemon learned from Slurm itself; "" forgets it.
    void learn(const std::string &node, const std::string &address);
    void check(const std::string &node, const SocketAddress &remote, Answer<Verdict> answer);

  private:
    struct Known {
        std::string text;
        std::vector<SocketAddress> addresses;  ///< empty: not resolved yet
        bool is_node = true;
        bool told = false;  ///< by learn(): kept until forgotten
        EventLoop::Time since{};
    };
    void ask_slurm(const std::string &node, const SocketAddress &remote, Answer<Verdict> answer);
    void resolve_name(const std::string &node, const SocketAddress &remote, Answer<Verdict> answer);
    void judge(const std::string &node, const Known &known, const SocketAddress &remote,
               Answer<Verdict> &answer);
    Known &remember(const std::string &node);
    const Known *find(const std::string &node);

    EventLoop &loop_;
    WorkerThread &resolver_;
    AddressRules rules_;
    LookUp look_up_;
    std::map<std::string, Known> known_;
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dlrover::transport
