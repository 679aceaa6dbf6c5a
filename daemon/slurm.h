// SPDX-License-Identifier: Apache-2.0
// What a daemon asks Slurm. Calls return at once, run in order on a thread that owns nothing, and answer on
// the event loop; each answer comes exactly once, with unavailable or timeout when slurmctld is away.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"

namespace dlrover::daemon {

struct SlurmJob {
    bool running = false;
    bool waiting = false;  ///< to be started, also after a requeue; neither: it has ended
    std::uint32_t uid = 0, gid = 0;
    std::uint32_t restart_count = 0;
    std::uint32_t array_job_id = 0, array_task_id = 0;
    std::string user;
    std::string batch_host;
    std::vector<std::string> nodes;  ///< present ones, Slurm's order; of an ended job those it had
    std::int64_t end_time = 0;       ///< seconds since the epoch
};

struct SlurmStep {
    SlurmJob job;
    std::vector<std::string> nodes;  ///< of the step, Slurm's order
};

struct NodeAddress {
    std::string node;
    std::string address;                  ///< NodeAddr
    std::uint64_t memory_spec_bytes = 0;  ///< MemSpecLimit; 0: none
};

class SlurmClient {
  public:
    template <typename T>
    using Answer = std::function<void(Result<T>)>;
    using Done = std::function<void(Status)>;

    virtual ~SlurmClient() = default;
    /// not_found when the job or step is unknown to Slurm.
    virtual void load_step(JobId job, StepId step, Answer<SlurmStep> answer) = 0;
    virtual void load_job(JobId job, Answer<SlurmJob> answer) = 0;
    /// Running jobs of a user; uid 0: of all users. Slurm's whole list of jobs is looked through: for people,
    /// not for timers.
    virtual void load_jobs_of(std::uint32_t uid, Answer<std::vector<SlurmJob>> answer) = 0;
    virtual void load_addresses(std::vector<std::string> nodes, Answer<std::vector<NodeAddress>> answer) = 0;
    /// permission_denied or invalid_argument: refused; unavailable, timeout: unknown whether it was done.
    virtual void shrink_job(JobId job, std::vector<std::string> survivors, Done done) = 0;
    virtual void requeue_job(JobId job, std::vector<std::string> excluded, Done done) = 0;
    virtual void complete_job(JobId job, int exit_code, Done done) = 0;
    /// Completes a batch job whose batch host Slurm has taken out of it, and none of whose steps is left:
    /// with no-kill nobody else would. true: nothing is left to be done, now or later.
    virtual void complete_headless(JobId job, std::uint32_t restart_count, int exit_code,
                                   Answer<bool> over) = 0;
    /// Of this node, as slurm.conf says.
    virtual std::string cluster_name() = 0;
};

}  // namespace dlrover::daemon
