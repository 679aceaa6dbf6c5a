// SPDX-License-Identifier: Apache-2.0
// SlurmClient by libslurm. Only slurm_calls.cpp includes Slurm's headers.
#pragma once

#include <atomic>
#include <map>
#include <memory>

#include "common/event_loop.h"
#include "common/worker_thread.h"
#include "daemon/slurm.h"

namespace dlrover::daemon {

/// Where a requeued job is to start, and when.
struct HastenOrder {
    std::uint32_t restart_count = 0;         ///< of the run that waits
    std::vector<std::string> excluded;       ///< not on these nodes
    std::vector<std::string> preferred;      ///< on those of them that can be had: it waits for nobody else
    bool hastens = true;                     ///< at once, on `preferred`; else that is left as it is
    bool anyhow = false;                     ///< without those that are still ending
    bool frees = false;                      ///< what such orders have excluded before may be had again
    std::vector<std::string> suspects = {};  ///< nodes that it is to check where it gets them
};

enum class Hastened : std::uint8_t {
    ending,     ///< its last run is, and it is put off for a while, to be hastened when that is over
    starts,     ///< it runs, or will on any nodes
    too_early,  ///< preferred nodes are still ending, or have yet to answer Slurm: nothing was changed
    tied,       ///< to the preferred nodes
};

/// The blocking calls, one at a time on one thread; a seam for the tests of LibSlurmClient.
class SlurmCalls {
  public:
    virtual ~SlurmCalls() = default;
    virtual Result<SlurmJob> load_job(JobId job) = 0;
    virtual Result<std::vector<SlurmJob>> load_jobs_of(std::uint32_t uid) = 0;
    virtual Result<SlurmStep> load_step(JobId job, StepId step) = 0;
    /// Without the nodes that Slurm does not know; not_found when it knows none of them.
    virtual Result<std::vector<NodeAddress>> load_addresses(const std::vector<std::string> &nodes) = 0;
    virtual Status shrink_job(JobId job, const std::vector<std::string> &survivors) = 0;
    virtual Status requeue_job(JobId job) = 0;
    /// As SlurmClient says.
    virtual Result<bool> complete_headless(JobId job, const HeadlessEnd &end) = 0;
    virtual Result<JobId> submit_companion(const CompanionOrder &order) = 0;
    virtual Result<Growth> grow_job(const CompanionOrder &order) = 0;
    virtual Result<std::vector<Companion>> load_companions(std::uint32_t uid, const std::string &mark) = 0;
    virtual Status mark_companion(JobId job, const std::string &mark) = 0;
    virtual Status mark_left(JobId job, std::uint32_t restart_count,
                             const std::vector<std::string> &marks) = 0;
    virtual Status cancel_job(JobId job) = 0;
    virtual Status drain_node(const std::string &node, const std::string &reason) = 0;
    virtual Result<SiteCapabilities> load_site() = 0;
    /// A requeued job that waits for its next run may start at once.
    virtual Result<Hastened> hasten_job(JobId job, const HastenOrder &order) = 0;
    virtual std::string cluster_name() = 0;
};

/// conf: slurm.conf, empty for Slurm's default. libslurm ends the process when it finds no configuration.
std::shared_ptr<SlurmCalls> make_libslurm_calls(const std::string &conf);

/// Answers come in time, also when libslurm does not: after `timeout` with Code::timeout. A change that had
/// not begun by then is not made.
class QueuedSlurmClient final : public SlurmClient {
  public:
    struct Options {
        EventLoop::Time timeout = std::chrono::seconds(10);
        std::size_t max_waiting = 1024;
        /// After a requeue: how often, how many times the job is looked at until it waits; not counted while
        /// its last run ends, which takes SlurmdTimeout where a node is gone that Slurm does not take out.
        EventLoop::Time hasten_pause = std::chrono::milliseconds(500);
        unsigned hasten_tries = 120;
        unsigned hasten_often = 40;  ///< so many times in that pause while it ends, then in this one:
        EventLoop::Time hasten_seldom = std::chrono::seconds(5);
        /// So long, at most, until the nodes that are preferred can be had; and, where it is tied to them
        /// then, until it starts.
        EventLoop::Time preferred_patience = std::chrono::seconds(10);
        /// So long it waits without the nodes that its last run has lost: as long as a group does not take
        /// such a node back.
        EventLoop::Time excluded_patience = std::chrono::minutes(1);
    };
    QueuedSlurmClient(EventLoop &loop, std::shared_ptr<SlurmCalls> calls, Options options);
    ~QueuedSlurmClient() override;

    void load_step(JobId job, StepId step, Answer<SlurmStep> answer) override;
    void load_job(JobId job, Answer<SlurmJob> answer, Asker asker = Asker::group) override;
    void load_jobs(std::vector<JobId> jobs, Answer<std::map<JobId, SlurmJob>> answer) override;
    void load_jobs_of(std::uint32_t uid, Answer<std::vector<SlurmJob>> answer) override;
    void load_addresses(std::vector<std::string> nodes, Answer<std::vector<NodeAddress>> answer,
                        Asker asker = Asker::group) override;
    void shrink_job(JobId job, std::vector<std::string> survivors, Done done) override;
    void requeue_job(JobId job, RequeueOrder order, Done done) override;
    void hasten_job(JobId job, NextRunOrder order, Done done) override;
    void free_job(JobId job, std::uint32_t restart_count, bool also_untie, Done done) override;
    void mark_left(JobId job, std::uint32_t restart_count, std::vector<std::string> marks,
                   Done done) override;
    void complete_headless(JobId job, HeadlessEnd end, Answer<bool> over) override;
    void submit_companion(CompanionOrder order, Answer<JobId> answer) override;
    void grow_job(CompanionOrder order, Answer<Growth> answer) override;
    void load_companions(std::uint32_t uid, std::string mark, Answer<std::vector<Companion>> answer) override;
    void mark_companion(JobId job, std::string mark, Done done) override;
    void cancel_job(JobId job, Done done) override;
    void drain_node(std::string node, std::string reason, Done done) override;
    void load_site(Answer<SiteCapabilities> answer) override;
    void on_return(std::function<void()> task) override { on_return_.push_back(std::move(task)); }
    std::string cluster_name() override { return cluster_; }

  private:
    void note_answer(Code code);
    template <typename R>
    struct Pending;
    template <typename R, typename Call>
    void enqueue(Call call, std::function<void(R)> answer, Asker asker = Asker::group);
    /// Of a requeued job.
    struct NextRun {
        HastenOrder order;
        unsigned tries_left;
        unsigned seen_ending = 0;
        std::optional<EventLoop::Time> early_since = {};
        bool was_tied = false;
    };
    void hasten(JobId job, NextRun next, EventLoop::Time pause);
    void hasten_first(JobId job, NextRunOrder order);
    void on_hastened(JobId job, NextRun next, const Result<Hastened> &answer);

    EventLoop &loop_;
    std::shared_ptr<SlurmCalls> calls_;
    Options options_;
    std::string cluster_;
    WorkerThread thread_;
    std::map<std::uint64_t, EventLoop::Handle> timers_;
    std::uint64_t next_timer_ = 0;
    std::vector<std::function<void()>> on_return_;
    bool away_ = false;
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dlrover::daemon
