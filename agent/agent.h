// SPDX-License-Identifier: Apache-2.0
// One task's agent: joins the daemon, runs the workers of each generation, ends with the group.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/beside.h"
#include "agent/crew.h"
#include "agent/filler.h"
#include "agent/link.h"
#include "agent/loop.h"
#include "agent/sink.h"
#include "agent/verifier.h"

namespace dlrover::agent {

/// Exit codes of ours, where there is none of the group's.
inline constexpr int exit_no_daemon = 69;    ///< nobody to join at the start
inline constexpr int exit_lost_daemon = 75;  ///< the daemon did not come back
inline constexpr int exit_cannot_run = 71;

struct AgentConfig {
    std::string program = "dlrover-agent";  ///< begins our lines on stderr
    std::string node;
    CrewConfig crew;
    std::uint16_t task = 0;       ///< this task's number on the node
    bool optional = false;        ///< without a daemon: run unprotected
    bool joins = false;           ///< the group is another job's: its leader has to take this node in first
    bool hangup_ends = false;     ///< SIGHUP means the end (no Slurm above us)
    std::vector<int> life_lines;  ///< pidfds: when one of these processes ends, so do we
    Loop::Duration start_limit{1700};
    Loop::Duration join_limit{600000};  ///< instead, where `joins`; the daemon gives up before
    Loop::Duration rejoin_limit{120000};
    /// After SIGTERM or SIGINT workers have this long, as with torchrun; Slurm's KillWait may be shorter.
    Loop::Duration notice_limit{30000};
};

struct Outcome {
    int exit_code = 0;
    bool unprotected = false;  ///< nothing was started; run the program without us
    bool orphaned = false;     ///< the process above this one is gone
};

/// Owns all of the agent's state; everything happens on the loop.
class Agent {
  public:
    /// `signals`: the blocked ones this agent takes.
    Agent(Loop &loop, AgentConfig config, const sigset_t &signals);
    ~Agent();
    Outcome run();

  private:
    using World = proto::local::WorldPublishedT;
    /// Of the files for one world's workers.
    struct Preparation {
        GenerationId generation;
        std::uint16_t first_local_rank = 0;
        bool operator==(const Preparation &) const = default;
    };

    Status begin();
    proto::local::AgentHelloT greeting() const;
    void on_up(const proto::local::AgentWelcomeT &welcome);
    void on_down(const Status &why);
    void on_message(proto::LocalMessage whole);
    void on_fill(const proto::local::FillSegmentT &order, std::vector<UniqueFd> fds);
    void on_verify(const proto::local::VerifyObjectT &order, std::vector<UniqueFd> fds);
    void on_look(const proto::local::LookAtRanksT &order);
    void on_verified(proto::local::ObjectVerifiedT verified);
    void on_ending(const proto::local::GroupEndingT &ending);
    void on_ended(proto::local::GroupEndedT ended);
    void give_notice();
    void on_world(World world);
    void on_stop(const proto::local::StopWorkersT &stop);
    bool goes_on() const;
    void go_on();
    void on_started(const proto::local::WorkerStartedT &start);
    void on_exited(const proto::local::WorkerExitedT &exit);
    void on_gone();
    void on_signal_ready();
    void on_signal(int signal);
    void on_end_signal(int signal);
    void on_start_limit();
    void on_life_line(std::size_t index);
    void check_lease();
    void arm_lease();
    void renew_lease(std::int64_t at_us);
    bool leased() const;
    void await_lease();
    void advance();
    void advance_soon();
    void launch();
    void prepare(const Preparation &wanted);
    void discard_prepared();
    void flush_output();
    void report_again();
    void report_stopped();
    void report_exit(const proto::local::WorkerExitedT &exit);
    std::string silence(Loop::Duration lease) const;
    std::string why_giving_up() const;
    void lose_lease(Loop::Duration lease);
    void clear_leftovers();
    void end_with(int exit_code);
    void finish();
    void print_end();
    Loop::Duration grace() const { return Loop::Duration(welcome_.stop_grace_ms); }

    Loop &loop_;
    AgentConfig config_;
    Sink out_;
    std::unique_ptr<Sink> own_err_;  ///< null: stdout and stderr are one file, whose lines keep their order
    Sink &err_;
    Link link_;
    Crew crew_;
    std::map<std::uint16_t, pid_t> pids_;  ///< by local rank
    Filler filler_;
    Verifier verifier_;
    Beside beside_;
    UniqueFd signal_fd_;
    proto::local::AgentWelcomeT welcome_;
    GenerationId current_;       ///< of the newest workers started (or the newest world without work for us)
    GenerationId member_of_;     ///< current_ while its workers were not stopped; else none
    GenerationId stop_through_;  ///< the daemon wants these and older ones gone
    bool stop_reply_due_ = false;
    std::optional<World> wanted_;  ///< to be started when nothing is left of the older ones
    Preparation preparation_;      ///< of prepared_, or of what is being prepared
    bool preparing_ = false;
    std::optional<Crew::Prepared> prepared_;
    std::optional<int> exit_code_;  ///< we are ending
    std::optional<proto::local::GroupEndedT> ended_;
    bool ending_ = false;  ///< the verdict is known to the daemon: nothing is started any more
    int end_signal_ = 0;
    Loop::Time end_signal_at_{};
    Loop::Time lease_from_{};
    bool joined_ = false, lease_lost_ = false;
    bool lease_asked_again_ = false;  ///< since it was last renewed
    bool staying_ = false;  ///< the workers leave their generation by themselves, and wait for the next one
    bool lease_stop_ = false;  ///< the newest workers were stopped for the lease, not by the daemon
    std::string why_not_joined_;
    Loop::Timer start_timer_ = 0, lease_timer_ = 0, rejoin_timer_ = 0, end_timer_ = 0, advance_timer_ = 0,
                notice_timer_ = 0, prepare_timer_ = 0;
    Outcome outcome_;
};

}  // namespace dlrover::agent
