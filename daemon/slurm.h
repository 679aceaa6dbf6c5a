// SPDX-License-Identifier: Apache-2.0
// What a daemon asks Slurm. Calls return at once, run in order on a thread that owns nothing, and answer on
// the event loop; each answer comes exactly once, with unavailable or timeout when slurmctld is away.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"

namespace dlrover::daemon {

struct SlurmJob {
    bool running = false;
    bool waiting = false;    ///< to be started, also after a requeue; neither: it has ended
    bool preempted = false;  ///< it runs and was told to make way for another one, and is to be requeued
    std::uint32_t uid = 0, gid = 0;
    std::uint32_t restart_count = 0;
    std::uint32_t array_job_id = 0, array_task_id = 0;
    std::string user;
    std::string batch_host;
    std::vector<std::string> nodes;  ///< present ones, Slurm's order; of an ended job those it had
    std::int64_t end_time = 0;       ///< seconds since the epoch
    bool is_tied = false;            ///< it waits, for some nodes by name
    bool has_excluded = false;       ///< it waits, and never for nodes that a run before has lost
    bool is_held_off = false;        ///< it waits, and Slurm does not look at it before some time has passed
    std::string mark;                ///< companion_mark() of the group it is for; a user can not set it
    std::vector<std::string> left;   ///< every left_mark(); a user can not set them either
    std::vector<std::string> grown;  ///< grown_mark() of each node that it was expanded by
    std::vector<std::string> lost_before;  ///< nodes that the run before this one has lost, as its group knew
};

struct SlurmStep {
    SlurmJob job;
    std::vector<std::string> nodes;  ///< of the step, Slurm's order
};

struct NodeAddress {
    std::string node;
    std::string address;                  ///< NodeAddr
    std::uint64_t memory_spec_bytes = 0;  ///< MemSpecLimit; 0: none
    std::string leaf_switch = {};         ///< that it hangs on, by Slurm's topology; empty: not known
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
    bool expands = false;            ///< its node was to be moved into the main job, and was not
    std::vector<std::string> nodes;  ///< none while it waits
};

/// What this site's Slurm can do, as slurmctld says at the moment.
struct SiteCapabilities {
    std::string version;         ///< slurmctld's
    bool database = false;       ///< slurmdbd: a job's size may change more than once
    bool job_expansion = false;  ///< SchedulerParameters=permit_job_expansion
    bool contain = false;        ///< PrologFlags=Contain: each job has an extern step
    bool job_shrink = true;      ///< no SchedulerParameters=disable_job_shrink
    bool node_changes = false;   ///< this daemon may drain nodes or set them down
    bool requeue = true;         ///< JobRequeue: batch jobs may be requeued unless they say otherwise
    std::uint32_t slurmd_timeout_s = 300;  ///< a silent node is given up after it
    std::uint32_t kill_wait_s = 30;        ///< between SIGTERM and SIGKILL at the end of a job
    std::uint32_t cred_expire_s = 120;     ///< a requeued job waits one second more than that
    std::string switch_type;               ///< "hpe_slingshot", "nvidia_imex"; empty: none

    /// The node of another job can be moved into a running one (dependency "expand").
    bool can_expand() const { return database && job_expansion && job_shrink && !contain && !bound_fabric(); }
    /// The fabric gives each job its own access: processes of two jobs do not reach each other by it.
    bool bound_fabric() const { return switch_type == "hpe_slingshot" || switch_type == "nvidia_imex"; }
};

/// "dlrover:57.0.1": what Slurm keeps beside a companion job, where only an administrator can write.
std::string companion_mark(JobId job, StepId step, std::uint32_t restart_count);

/// "dlrover-without:0.1:n1": the group of that step and run goes on without a node that Slurm keeps in the
/// job. Beside the companion jobs' marks.
std::string left_mark(StepId step, std::uint32_t restart_count, const std::string &node);

/// Who wants the job requeued: refused where Slurm has taken that node out, or its mark is there.
struct RequeueOrder {
    std::string asker;  ///< empty: a node with a job of its own
    std::string mark;   ///< left_mark() of it; empty: as above
    std::vector<std::string> excluded;
    std::uint32_t restart_count = 0;         ///< another run of the job is left alone
    std::vector<std::string> suspects = {};  ///< NextRunOrder's
};

/// A job's run that waits after a requeue.
struct NextRunOrder {
    std::uint32_t restart_count = 0;         ///< of that run: another one is left alone
    std::vector<std::string> excluded;       ///< not on these nodes, for a minute
    std::vector<std::string> preferred;      ///< on those of them that can be had within seconds
    std::vector<std::string> suspects = {};  ///< nodes that it is to check where it gets them
};

/// "dlrover-node:0.1:n5": as above, of the main job itself: its run 1 was expanded by n5, for step 0.
std::string grown_mark(StepId step, std::uint32_t restart_count, const std::string &node);

/// How a job ends whose batch host is gone.
struct HeadlessEnd {
    std::uint32_t restart_count = 0;  ///< another run of the job is left alone
    int exit_code = 0;
    std::optional<StepId> over = {};  ///< this step has ended, whatever Slurm says
    bool anyhow = false;              ///< also where Slurm still counts on the host and other steps
    bool again = false;               ///< the job is to run again; where Slurm refuses that it ends
};

/// A node that a job was expanded by.
struct Growth {
    std::string node;
    std::uint32_t cpus_per_task = 1;  ///< of the order's step
};

/// A step, as by which a node has joined.
using StepKey = std::pair<JobId, StepId>;

class SlurmClient {
  public:
    template <typename T>
    using Answer = std::function<void(Result<T>)>;
    using Done = std::function<void(Status)>;

    /// Whom a question is for: those of groups, which fence by the answers, go before those of people.
    enum class Asker : std::uint8_t { group, person };

    virtual ~SlurmClient() = default;
    /// not_found when the job or step is unknown to Slurm.
    virtual void load_step(JobId job, StepId step, Answer<SlurmStep> answer) = 0;
    virtual void load_job(JobId job, Answer<SlurmJob> answer, Asker asker = Asker::group) = 0;
    /// Each asked for by itself; without those that Slurm does not know.
    virtual void load_jobs(std::vector<JobId> jobs, Answer<std::map<JobId, SlurmJob>> answer) = 0;
    /// Running jobs of a user; uid 0: of all users. Slurm's whole list of jobs is looked through: for people,
    /// not for timers.
    virtual void load_jobs_of(std::uint32_t uid, Answer<std::vector<SlurmJob>> answer) = 0;
    virtual void load_addresses(std::vector<std::string> nodes, Answer<std::vector<NodeAddress>> answer,
                                Asker asker = Asker::group) = 0;
    /// permission_denied or invalid_argument: refused; unavailable, timeout: unknown whether it was done;
    /// unsupported: the site forbids it (disable_job_shrink).
    virtual void shrink_job(JobId job, std::vector<std::string> survivors, Done done) = 0;
    /// Its next run begins at once, on the nodes that are left where Slurm gives them within seconds.
    virtual void requeue_job(JobId job, RequeueOrder order, Done done) = 0;
    /// What requeue_job() does after the requeue, where its daemon may have died before.
    virtual void hasten_job(JobId job, NextRunOrder order, Done done) = 0;
    /// A requeued job that waits may start on nodes that its groups have excluded; also_untie: at once, and
    /// on others than those that it names.
    virtual void free_job(JobId job, std::uint32_t restart_count, bool also_untie, Done done) = 0;
    /// Only where the job runs, and for this time.
    virtual void mark_left(JobId job, std::uint32_t restart_count, std::vector<std::string> marks,
                           Done done) = 0;
    /// Completes a batch job whose batch host Slurm has taken out of it, and none of whose steps is left:
    /// with no-kill nobody else would; or has it run again, where it is to. true: nothing is left to be done,
    /// now or later.
    virtual void complete_headless(JobId job, HeadlessEnd end, Answer<bool> over) = 0;
    /// As the user of that job. invalid_argument, permission_denied: Slurm refuses, or the job is one that
    /// can have none; timeout, unavailable: unknown whether it was done.
    virtual void submit_companion(CompanionOrder order, Answer<JobId> answer) = 0;
    /// Moves one more node into that job, as its user: at once, or not at all; its mark is there before it.
    /// Answers as submit_companion's.
    virtual void grow_job(CompanionOrder order, Answer<Growth> answer) = 0;
    /// This user's jobs with that mark which wait or run: all of the user's jobs are looked through.
    virtual void load_companions(std::uint32_t uid, std::string mark,
                                 Answer<std::vector<Companion>> answer) = 0;
    /// A job that a user has submitted himself.
    virtual void mark_companion(JobId job, std::string mark, Done done) = 0;
    virtual void cancel_job(JobId job, Done done) = 0;
    /// Its running jobs stay. The reason of an administrator who has drained it before stays as well.
    virtual void drain_node(std::string node, std::string reason, Done done) = 0;
    /// Asks slurmctld each time: for an incident or a person, not for short timers.
    virtual void load_site(Answer<SiteCapabilities> answer) = 0;
    /// `task` runs, after those that were given before, each time when Slurm answers again after it did not.
    virtual void on_return(std::function<void()> task) = 0;
    /// Of this node, as slurm.conf says.
    virtual std::string cluster_name() = 0;
};

}  // namespace dlrover::daemon
