// SPDX-License-Identifier: Apache-2.0
// dlrover-run --standalone: a private keeper and daemon for one run on this machine.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"

namespace dlrover::agent {

struct StandaloneSpec {
    std::vector<std::string> argv;  ///< the user's program
    std::string name;               ///< of the run, may be empty
    unsigned workers = 1;
    std::uint32_t max_restarts = 3;
};

/// Owns the keeper's process and its private folder.
class Standalone {
  public:
    /// Starts keeper and daemon and registers the run.
    static Result<Standalone> start(const StandaloneSpec &spec);
    Standalone(Standalone &&other) noexcept;
    Standalone &operator=(Standalone &&) = delete;
    ~Standalone() { end(); }

    /// Ends keeper and daemon and removes the folder; once.
    void end();
    pid_t keeper() const noexcept { return keeper_; }
    const std::string &dir() const noexcept { return dir_; }
    std::string socket() const { return dir_ + "/s"; }
    JobId job() const noexcept { return job_; }

  private:
    Standalone() = default;
    Status start_keeper();
    Status register_run(const StandaloneSpec &spec);
    std::string log() const;

    std::string dir_;
    pid_t keeper_ = 0;
    JobId job_;
};

}  // namespace dlrover::agent
