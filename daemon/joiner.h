// SPDX-License-Identifier: Apache-2.0
// Brings this node into groups that run elsewhere: asks their nodes until the leader has taken it in.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "common/event_loop.h"
#include "daemon/join_codec.h"
#include "daemon/slurm.h"
#include "transport/peer_network.h"

namespace dlrover::daemon {

/// Thread: the event loop's.
class Joiner {
  public:
    /// Of a companion job's first step, or of a step of the group's own job; it was checked.
    struct Request {
        proto::StepRegistrationT step;
        std::unique_ptr<proto::LaunchSpecT> launch;
        JobId job;  ///< to be joined
        StepId group_step;
        std::uint32_t restart_count = 0;
        StepKey key() const { return {JobId(step.job_id), StepId(step.step_id)}; }
    };
    /// Not ok: this node can not be a part of it.
    using Welcome = std::function<Status(Request &request, join::WordT word)>;

    Joiner(EventLoop &loop, SlurmClient &slurm, transport::PeerNetwork &peers, const std::string &self,
           Welcome welcome)
        : loop_(loop), slurm_(slurm), peers_(peers), self_(self), welcome_(std::move(welcome)) {}
    ~Joiner();

    /// resource_exhausted: too many at once, of all users or of this one.
    Status begin(Request request);
    /// unavailable: it is being asked for; another failure: why it will not be. ok: not known here.
    Status state(StepKey joins, std::uint32_t uid) const;
    /// Its step has ended.
    void forget(StepKey joins);
    void on_link(const std::string &node, bool up);
    void on_word(const std::string &node, const transport::PeerEnvelope &envelope);

  private:
    struct Attempt {
        Request request;
        std::set<std::string> connected;    ///< a link is held for it
        std::string leader;                 ///< as the last one asked says
        EventLoop::Time until{0};           ///< it fails then; failed: forgotten
        std::optional<std::string> failed;  ///< why
        EventLoop::Handle timer;
    };
    Attempt *find(StepKey joins);
    Status room_for(std::uint32_t uid);
    void find_nodes(StepKey joins);
    void connect(StepKey joins, std::vector<std::string> nodes);
    void ask(StepKey joins);
    void send(const Attempt &attempt, const std::string &node);
    void fail(Attempt &attempt, Status why);
    void release(Attempt &attempt);

    EventLoop &loop_;
    SlurmClient &slurm_;
    transport::PeerNetwork &peers_;
    const std::string &self_;
    Welcome welcome_;
    std::map<StepKey, Attempt> attempts_;  ///< by the step that is to join
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dlrover::daemon
