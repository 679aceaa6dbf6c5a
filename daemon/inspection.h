// SPDX-License-Identifier: Apache-2.0
// Answers `dlrover node check`: looks at Slurm, munged, keeper, memory and network, once for all who ask at
// the same time.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "common/settings.h"
#include "daemon/memory_budget.h"
#include "daemon/record_keeper.h"
#include "daemon/site.h"

namespace dlrover::daemon {

/// Looks at what blocks, elsewhere, and answers on the loop: at the interface that has node_addr; where that
/// is empty, at munged.
using NodeProbe = std::function<void(const std::string &node_addr, std::function<void(Facts)> answer)>;

/// Thread: the event loop's.
class Inspection {
  public:
    struct Parts {
        EventLoop &loop;
        SlurmClient &slurm;
        Site &site;
        RecordKeeper &keeper;
        MemoryBudget &budget;
        const Settings &settings;
        std::string node;
        NodeProbe probe;                      ///< empty: not looked at
        std::function<std::string()> charge;  ///< whose memory checkpoints are, for a person
    };
    using Answer = std::function<void(const local::NodeCheckReplyT &)>;

    explicit Inspection(Parts parts) : parts_(std::move(parts)) {}
    ~Inspection();
    /// Within seconds, whoever does not answer. False: too many ask already.
    bool ask(Answer answer);

  private:
    void begin();
    struct Round;
    using Shared = std::shared_ptr<Round>;
    void look_at_slurm(const Shared &round);
    void look_at_munge(const Shared &round);
    void look_at_network(const Shared &round);
    void ask_probe(const Shared &round, const std::string &node_addr, const char *question);
    void look_at_keeper(const Shared &round);
    void look_at_memory(Round &round) const;
    /// One of the round's questions is answered.
    void close(const Shared &round, const std::string &question);
    void finish();

    Parts parts_;
    std::vector<Answer> waiting_;
    Shared round_;  ///< the one under way; what older ones hear comes too late
    std::unique_ptr<local::NodeCheckReplyT> last_;
    EventLoop::Time last_at_{0};
    EventLoop::Handle limit_;
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dlrover::daemon
