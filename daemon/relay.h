// SPDX-License-Identifier: Apache-2.0
// Asks the daemons of a job's nodes what this node does not know (the command line on a login host).
#pragma once

#include <map>
#include <optional>
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
    using Answer = std::function<void(std::optional<local::MessageT>)>;
    Relay(EventLoop &loop, SlurmClient &slurm, transport::PeerNetwork &peers)
        : loop_(loop), slurm_(slurm), peers_(peers) {}
    ~Relay();

    /// `request` on behalf of `uid` to the nodes of the job, one after the other, until one answers. The
    /// answer comes once; none: nobody knows the job, it is not the asker's, or nobody answers in time.
    void ask(std::uint32_t uid, JobId job, local::MessageT request, Answer answer);
    void on_link(const std::string &node, bool up);
    void on_reply(const transport::PeerEnvelope &envelope);

  private:
    struct Question {
        std::uint32_t uid = 0;
        JobId job;
        proto::Bytes request;
        Answer answer;
        std::vector<NodeAddress> nodes;  ///< still to be asked; the last one is being asked
        bool connected = false, sent = false;
        EventLoop::Handle timer;
    };
    void try_next(std::uint32_t id);
    void send(std::uint32_t id, Question &question);
    void leave_node(Question &question);
    void finish(std::uint32_t id, std::optional<local::MessageT> message);

    EventLoop &loop_;
    SlurmClient &slurm_;
    transport::PeerNetwork &peers_;
    std::map<std::uint32_t, Question> questions_;
    std::uint32_t next_id_ = 1;
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dlrover::daemon
