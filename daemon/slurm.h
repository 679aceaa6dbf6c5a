// SPDX-License-Identifier: Apache-2.0
// What a daemon asks Slurm. Calls return at once, run in order on a thread that owns nothing, and answer on
// the event loop; each answer comes exactly once, with unavailable or timeout when slurmctld is away.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
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
    std::string mark;                ///< companion_mark() of the group it is for; a user can not set it
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

/// A job of one node that is to take the place of a lost one.
struct CompanionOrder {
    JobId job;    ///< whose group: account, partition and the like are those of this job
    StepId step;  ///< and its tasks those of this step
    std::uint32_t restart_count = 0;
    std::uint16_t tasks = 1;
    std::vector<std::string> excluded;  ///< nodes
    std::vector<std::string> options;   ///< of srun
    std::vector<std::string> argv, environment;
    std::string cwd;
};

struct Companion {
    JobId job;
    bool waiting = false;            ///< to be started; else it runs
    std::vector<std::string> nodes;  ///< none while it waits
};

/// "dlrover:57.0.1": what Slurm keeps beside a companion job, where only an administrator can write.
std::string companion_mark(JobId job, StepId step, std::uint32_t restart_count);

class SlurmClient {
  public:
    template <typename T>
    using Answer = std::function<void(Result<T>)>;
    using Done = std::function<void(Status)>;

    virtual ~SlurmClient() = default;
    /// not_found when the job or step is unknown to Slurm.
    virtual void load_step(JobId job, StepId step, Answer<SlurmStep> answer) = 0;
    virtual void load_job(JobId job, Answer<SlurmJob> answer) = 0;
    /// Each asked for by itself; without those that Slurm does not know.
    virtual void load_jobs(std::vector<JobId> jobs, Answer<std::map<JobId, SlurmJob>> answer) = 0;
    /// Running jobs of a user; uid 0: of all users. Slurm's whole list of jobs is looked through: for people,
    /// not for timers.
    virtual void load_jobs_of(std::uint32_t uid, Answer<std::vector<SlurmJob>> answer) = 0;
    virtual void load_addresses(std::vector<std::string> nodes, Answer<std::vector<NodeAddress>> answer) = 0;
    /// permission_denied or invalid_argument: refused; unavailable, timeout: unknown whether it was done.
    virtual void shrink_job(JobId job, std::vector<std::string> survivors, Done done) = 0;
    virtual void requeue_job(JobId job, std::vector<std::string> excluded, Done done) = 0;
    /// Completes a batch job whose batch host Slurm has taken out of it, and none of whose steps is left:
    /// with no-kill nobody else would. `anyhow`: also where Slurm still counts on host and steps. true:
    /// nothing is left to be done, now or later.
    virtual void complete_headless(JobId job, std::uint32_t restart_count, int exit_code, bool anyhow,
                                   Answer<bool> over) = 0;
    /// As the user of that job. invalid_argument, permission_denied: Slurm refuses, or the job is one that
    /// can have none; timeout, unavailable: unknown whether it was done.
    virtual void submit_companion(CompanionOrder order, Answer<JobId> answer) = 0;
    /// This user's jobs with that mark which wait or run: all of the user's jobs are looked through.
    virtual void load_companions(std::uint32_t uid, std::string mark,
                                 Answer<std::vector<Companion>> answer) = 0;
    /// A job that a user has submitted himself.
    virtual void mark_companion(JobId job, std::string mark, Done done) = 0;
    virtual void cancel_job(JobId job, Done done) = 0;
    /// Of this node, as slurm.conf says.
    virtual std::string cluster_name() = 0;
};

}  // namespace dlrover::daemon
