// SPDX-License-Identifier: Apache-2.0
// Asks the daemons of a job's nodes what this node does not know: each node has its own part of the time line
// and the state of its own ranks, and a login host has nothing.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/event_loop.h"
#include "daemon/local_port.h"
#include "daemon/slurm.h"
#include "transport/peer_network.h"

namespace dlrover::daemon {

/// Thread: the event loop's.
class Relay {
  public:
    using Answers = std::vector<local::MessageT>;
    using Answer = std::function<void(Answers)>;
    /// What this node knows itself of the job's nodes.
    struct Nodes {
        std::set<std::string> joined;   ///< that work for the job besides its own
        std::set<std::string> members;  ///< all that have, of which those are asked that have a link to here
    };
    /// `self`: this node's name; it is never asked.
    Relay(EventLoop &loop, SlurmClient &slurm, transport::PeerNetwork &peers, const std::string &self)
        : loop_(loop), slurm_(slurm), peers_(peers), self_(self) {}
    ~Relay();

    /// `request` on behalf of `uid` to all other nodes of the job (the first 256), at once; job 0: to those
    /// of all his running jobs, of everybody's for root. A user may have four questions under way. What they
    /// answered within two seconds, 8 MiB of it at most, comes once; nothing: nobody knows the job, it is not
    /// the asker's, or nobody answers. Where Slurm does not say within a second which nodes those are, those
    /// of `known` are asked that have a link to here; where there are none it is waited for, 16 s at most.
    void ask(std::uint32_t uid, JobId job, local::MessageT request, Answer answer, Nodes known = {});
    void on_link(const std::string &node, bool up);
    void on_reply(const std::string &node, const transport::PeerEnvelope &envelope);

  private:
    struct Question {
        std::uint32_t uid = 0;
        JobId job;
        proto::Bytes request;
        Answer answer;
        Answers answers;
        std::size_t answer_bytes = 0;
        Nodes known;
        bool asked = false;               ///< whoever is asked has been
        std::set<std::string> connected;  ///< a link is held for this question
        std::set<std::string> waiting;    ///< asked or to be asked, no answer yet
        EventLoop::Handle timer;
    };
    bool has_room(std::uint32_t uid) const;
    void find_nodes(std::uint32_t id, const Result<std::vector<SlurmJob>> &jobs);
    void ask_nodes(std::uint32_t id, const std::vector<NodeAddress> &nodes);
    void ask_members(std::uint32_t id, bool may_wait);
    void send(std::uint32_t id, const Question &question, const std::string &node);
    void finish(std::uint32_t id);

    EventLoop &loop_;
    SlurmClient &slurm_;
    transport::PeerNetwork &peers_;
    const std::string &self_;
    std::map<std::uint32_t, Question> questions_;
    std::uint32_t next_id_ = 1;
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dlrover::daemon
