// SPDX-License-Identifier: Apache-2.0
// The workers of one generation on this agent, and everything that descends from them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/aside.h"
#include "agent/environment.h"
#include "agent/log_plan.h"
#include "agent/oom.h"
#include "agent/sink.h"
#include "agent/spawn.h"
#include "agent/stream.h"
#include "base/ids.h"

namespace dlrover::agent {

struct CrewConfig {
    LaunchSpec launch;
    Environment base;               ///< the agent's own environment
    std::vector<std::string> argv;  ///< the user's program; {local_rank} in it is not replaced
    unsigned workers = 1;
    InheritedSignals signals;
    std::string scratch;    ///< private folder for error files
    std::string spill_dir;  ///< the job's working folder
    LogPlan logs;
};

/// Thread: the loop's. Callbacks come from the loop or from within start, stop and reap.
class Crew {
  public:
    struct Events {
        std::function<void(const proto::local::WorkerStartedT &)> started;
        std::function<void(const proto::local::WorkerExitedT &)> exited;
        /// stop() has been asked for and no process is left below this one.
        std::function<void()> gone;
    };
    /// This process must be a subreaper, with no children but those made here.
    Crew(Loop &loop, Sink &out, Sink &err, CrewConfig config, Events events);
    ~Crew();

    /// Where it is another one than the task's own step.
    void set_group(JobId job, StepId step) {
        config_.launch.job = job;
        config_.launch.step = step;
    }
    /// What start() needs of file systems, looked for beside the loop. `done` follows, on the loop.
    struct Prepared {
        struct LogFiles {
            UniqueFd out, err;  ///< or none
        };
        Status status;               ///< why a log can not be written
        std::string program;         ///< the file to run
        std::vector<LogFiles> logs;  ///< by worker
    };
    void prepare(const proto::local::WorldPublishedT &world, LocalRank first_local_rank,
                 std::function<void(Prepared)> done);
    /// Where it is not started: to close a file may take its time, too.
    void discard(Prepared prepared);
    /// Precondition: empty(). `first_local_rank`: of this agent.
    Status start(const proto::local::WorldPublishedT &world, LocalRank first_local_rank,
                 const std::string &lineage, Prepared prepared);
    /// Its processes are those of the next world, too; each is told what changes in its environment.
    /// Precondition: all are running, and have left their generation. resource_exhausted: that is too much to
    /// be told, and nothing has changed.
    Status go_on(const proto::local::WorldPublishedT &world, LocalRank first_local_rank);
    /// SIGTERM to the whole tree, after `grace` SIGKILL until nothing is left, then Events::gone. A second
    /// call can only shorten the grace.
    void stop(Loop::Duration grace);
    /// After SIGCHLD.
    void reap();

    /// No process is left below this one.
    bool empty() const noexcept { return empty_; }
    bool stopping() const noexcept { return stopping_; }
    /// Workers (not what descends from them) that have not ended.
    std::size_t running() const;
    /// Every worker of this generation so far, as told by Events.
    std::vector<proto::local::WorkerStartedT> started() const;
    std::vector<proto::local::WorkerExitedT> exited() const;

    /// To the workers themselves; SIGINT and `to_groups` as a terminal does, to their process groups.
    void forward(int signal, bool to_groups = false);
    /// Stops or continues the whole tree.
    void pause(bool on);
    /// A worker that ends from now on ended because the job was told to.
    void expect_end() { end_expected_ = true; }

  private:
    struct Worker;
    Status start_all(const proto::local::WorldPublishedT &world, LocalRank first_local_rank,
                     Prepared &prepared);
    Status start_worker(const proto::local::WorldPublishedT &world, LocalRank local_rank,
                        const std::string &program, Prepared::LogFiles &logs);
    void place(Worker &worker, const proto::local::WorldPublishedT &world, LocalRank local_rank) const;
    std::string error_file_of(const proto::local::WorldPublishedT &world, LocalRank local_rank) const;
    Environment environment_of(const proto::local::WorldPublishedT &world, LocalRank local_rank) const;
    StreamPlan plan_stream(Worker &worker, bool is_err, UniqueFd &log);
    struct Words;
    Words read_words(const Worker &worker);
    std::string log_dir_of(const proto::local::WorldPublishedT &world, LocalRank rank) const;
    void on_worker_end(Worker &worker, int wait_status);
    void on_leftovers();
    void kill_round();
    void finish_stop();
    SpillFile *spill_of(Rank rank, bool is_err);
    std::string last_words(const Worker &worker, std::string from_stderr);

    Loop &loop_;
    Sink &out_, &err_;
    CrewConfig config_;
    Events events_;
    std::vector<std::unique_ptr<Worker>> workers_;
    std::map<std::pair<Rank, bool>, std::unique_ptr<SpillFile>> spills_;
    OomCounter oom_;
    Aside files_, words_;
    Loop::Time words_until_{};
    Loop::Timer kill_timer_ = 0;
    Loop::Time kill_began_{};
    bool empty_ = true, stopping_ = false, killing_ = false, end_expected_ = false, complained_ = false;
    bool said_not_run_ = false;
};

}  // namespace dlrover::agent
