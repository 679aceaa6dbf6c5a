// SPDX-License-Identifier: Apache-2.0
// What this site allows: asked of Slurm once, kept, and put into words.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/event_loop.h"
#include "daemon/slurm.h"
#include "proto/local_codec.h"

namespace dlrover::daemon {

namespace local = proto::local;
using Facts = std::vector<std::unique_ptr<local::FactT>>;
using Rungs = std::vector<std::unique_ptr<local::RungT>>;

void add_fact(Facts &facts, std::string name, local::FactState state, std::string text,
              std::string change = {});

Facts site_facts(const SiteCapabilities &site);
/// The answers to a lost node, in the order in which they are tried. companion_jobs: the setting.
Rungs ladder_of(const SiteCapabilities &site, bool companion_jobs);

/// Thread: the event loop's.
class Site {
  public:
    using Answer = SlurmClient::Answer<SiteCapabilities>;

    Site(EventLoop &loop, SlurmClient &slurm) : loop_(loop), slurm_(slurm) {}
    ~Site();
    /// Asks Slurm, until it answers; and again when it was away.
    void start();
    /// None: Slurm has not answered yet.
    const std::optional<SiteCapabilities> &known() const { return known_; }
    /// Asks anew: a running slurmctld may have been given another configuration.
    void load(Answer answer);

  private:
    void learn();
    void note(const SiteCapabilities &site);

    EventLoop &loop_;
    SlurmClient &slurm_;
    std::optional<SiteCapabilities> known_;
    EventLoop::Handle retry_;
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dlrover::daemon
