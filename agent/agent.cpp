// SPDX-License-Identifier: Apache-2.0
#include "agent/agent.h"

#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

#include <utility>

#include "agent/files.h"
#include "base/fault.h"
#include "base/process_tree.h"
#include "base/units.h"

namespace dlrover::agent {
namespace {

using namespace std::chrono_literals;

/// A worker that died of an end signal may have got it together with us: wait this long for ours.
constexpr Loop::Duration shared_signal_wait = 10ms;
/// After an end signal and the workers' end: how long the daemon has for its verdict.
constexpr Loop::Duration verdict_wait = 3s;
constexpr Loop::Duration word_underway = 500ms;
/// A second end signal this much later means "now".
constexpr Loop::Duration repeated_signal_after = 300ms;
constexpr Loop::Duration orphaned_grace = 1s;
constexpr Loop::Duration last_flush = 5s, bye_flush = 200ms;
constexpr Loop::Duration longest_flush = 30s;  ///< of files that are slow
constexpr Loop::Duration slow_start = 10s;

GenerationId id_of(const std::unique_ptr<proto::Generation> &g) {
    return g ? GenerationId{Term(g->term()), g->number()} : GenerationId{};
}

std::unique_ptr<proto::Generation> to_proto(const GenerationId &id) {
    return std::make_unique<proto::Generation>(id.term.value(), id.number);
}

bool died_of_end_signal(int wait_status) {
    if (!WIFSIGNALED(wait_status)) return false;
    int s = WTERMSIG(wait_status);
    return s == SIGTERM || s == SIGINT || s == SIGHUP;
}

}  // namespace

Agent::Agent(Loop &loop, AgentConfig config, const sigset_t &signals)
    : loop_(loop),
      config_(std::move(config)),
      out_(loop, STDOUT_FILENO, config_.program),
      own_err_(is_same_file(STDOUT_FILENO, STDERR_FILENO)
                   ? nullptr
                   : std::make_unique<Sink>(loop, STDERR_FILENO, config_.program)),
      err_(own_err_ ? *own_err_ : out_),
      link_(loop, config_.crew.launch.socket,
            {[this] { return greeting(); }, [this](const auto &welcome) { on_up(welcome); },
             [this](const Status &why) { on_down(why); },
             [this](auto whole) { on_message(std::move(whole)); }}),
      crew_(loop, out_, err_, config_.crew,
            {[this](const auto &start) { on_started(start); }, [this](const auto &exit) { on_exited(exit); },
             [this] { on_gone(); }}),
      filler_(loop, [this](auto filled) { link_.send(std::move(filled)); }),
      verifier_(loop, [this](auto verified) { on_verified(std::move(verified)); }),
      beside_(loop, config_.crew.signals, [this](auto ended) { link_.send(std::move(ended)); }),
      signal_fd_(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK)) {}

Agent::~Agent() = default;

Outcome Agent::run() {
    if (!signal_fd_ || !begin().ok()) {
        err_.say("can not start: no signalfd or epoll on this system");
        (void)err_.flush(last_flush);
        return {exit_cannot_run};
    }
    loop_.run();
    return outcome_;
}

Status Agent::begin() {
    // Signals before everything else: a worker's end is judged knowing what we were told.
    DLROVER_TRY(loop_.watch(signal_fd_.get(), EPOLLIN, [this](std::uint32_t) { on_signal_ready(); }));
    for (std::size_t i = 0; i < config_.life_lines.size(); ++i)
        DLROVER_TRY(
            loop_.watch(config_.life_lines[i], EPOLLIN, [this, i](std::uint32_t) { on_life_line(i); }));
    start_timer_ =
        loop_.after(config_.joins ? config_.join_limit : config_.start_limit, [this] { on_start_limit(); });
    link_.open();
    return {};
}

// ---- the daemon ----------------------------------------------------------------------------------

proto::local::AgentHelloT Agent::greeting() const {
    proto::local::AgentHelloT hello;
    hello.job_id = config_.crew.launch.job.value();
    hello.step_id = config_.crew.launch.step.value();
    hello.task = config_.task;
    hello.workers = static_cast<std::uint16_t>(config_.crew.workers);
    hello.resumed_generation = to_proto(member_of_);
    hello.verifies = hello.looks = true;
    hello.staying = staying_;
    return hello;
}

void Agent::on_up(const proto::local::AgentWelcomeT &welcome) {
    loop_.cancel(start_timer_);
    welcome_ = welcome;
    // A daemon that comes back may know no more of the group than this: its first word of that counts.
    if (!joined_) lease_from_ = Loop::now();
    joined_ = true;
    if (welcome.job_id != 0) crew_.set_group(JobId(welcome.job_id), StepId(welcome.step_id));
    report_again();
    if (ending_) return;
    if (!lease_lost_) return arm_lease();
    err_.say("dlroverd on " + config_.node + " is back");
    await_lease();
}

/// What the daemon may have missed.
void Agent::report_again() {
    if (current_ == GenerationId{}) return;
    for (const auto &start : crew_.started()) link_.send(start);
    for (const auto &exit : crew_.exited()) report_exit(exit);
    if (crew_.empty() && (lease_stop_ || stop_reply_due_)) {
        stop_through_ = std::max(stop_through_, current_);
        report_stopped();
    }
    if (end_signal_ != 0) {
        proto::local::AgentSignalT message;
        message.signal = end_signal_;
        link_.send(message);
    }
}

void Agent::on_down(const Status &why) {
    why_not_joined_ = why.message();
    verifier_.cancel_all();
    bool never = config_.joins && !joined_ && why.code() == Code::not_found;
    if (never && start_timer_ != 0) {
        loop_.cancel(start_timer_);
        start_timer_ = loop_.after(Loop::Duration(0), [this] { on_start_limit(); });
    }
    // A lost connection within the lease is nobody's business; the end of the lease tells the reason.
    if (!link_.up() || exit_code_) return;
    err_.say("dlroverd on " + config_.node + ": " + why.message());
}

void Agent::on_start_limit() {
    start_timer_ = 0;
    if (end_signal_ != 0) {
        outcome_.exit_code = 128 + end_signal_;
    } else if (config_.joins) {
        err_.say("node " + config_.node + " does not join: " + why_not_joined_);
        outcome_.exit_code = exit_no_daemon;
    } else if (config_.optional) {
        err_.say("warning: running without protection: " + why_not_joined_);
        outcome_.unprotected = true;
    } else {
        err_.say("dlroverd on node " + config_.node + " can not be used: " + why_not_joined_ +
                 ". Ask the administrator to look at it (systemctl status dlrover on that node), leave "
                 "the node out (--exclude=" +
                 config_.node + "), or add --dlrover-optional to run unprotected.");
        outcome_.exit_code = exit_no_daemon;
    }
    link_.close();
    (void)err_.flush(last_flush);
    loop_.stop();
}

void Agent::on_message(proto::LocalMessage whole) {
    proto::local::MessageT &message = whole.message;
    if (auto *notice = message.body.AsNotice()) return err_.say(notice->text);
    if (auto *renewed = message.body.AsLeaseRenewed()) renew_lease(renewed->at_us);
    if (auto *world = message.body.AsWorldPublished()) {
        renew_lease(world->at_us);
        on_world(std::move(*world));
    }
    if (auto *stop = message.body.AsStopWorkers()) on_stop(*stop);
    if (auto *ending = message.body.AsGroupEnding()) on_ending(*ending);
    if (auto *ended = message.body.AsGroupEnded()) on_ended(std::move(*ended));
    if (auto *order = message.body.AsFillSegment()) on_fill(*order, std::move(whole.fds));
    if (auto *order = message.body.AsVerifyObject()) on_verify(*order, std::move(whole.fds));
    if (auto *order = message.body.AsLookAtRanks()) on_look(*order);
    if (auto *order = message.body.AsCancelOrder()) verifier_.cancel(order->order);
    if (auto *start = message.body.AsStartStep(); start && !exit_code_ && !ending_) beside_.start(*start);
}

void Agent::on_fill(const proto::local::FillSegmentT &order, std::vector<UniqueFd> fds) {
    if (exit_code_ || ending_ || fds.empty()) return;
    Status status = filler_.fill(order, std::move(fds.front()));
    if (status.ok()) return;
    proto::local::SegmentFilledT filled;
    filled.id = order.id;
    filled.text = status.message();
    link_.send(std::move(filled));
}

void Agent::on_verify(const proto::local::VerifyObjectT &order, std::vector<UniqueFd> fds) {
    if (exit_code_ || ending_) return;
    Status status = verifier_.verify(order, std::move(fds));
    fault_point("agent_verify_begun");
    if (status.ok()) return;
    proto::local::ObjectVerifiedT verified;
    verified.order = order.order;
    verified.text = status.message();
    link_.send(std::move(verified));
}

void Agent::on_verified(proto::local::ObjectVerifiedT verified) {
    fault_point("agent_object_verified");
    link_.send(std::move(verified));
}

void Agent::on_look(const proto::local::LookAtRanksT &order) {
    proto::local::RanksSeenT seen;
    for (std::uint16_t local_rank : order.local_ranks) {
        auto rank = pids_.find(local_rank);
        auto activity = rank != pids_.end() ? activity_of(rank->second) : std::nullopt;
        if (!activity) continue;
        auto &one = *seen.ranks.emplace_back(std::make_unique<proto::local::RankActivityT>());
        one.local_rank = local_rank;
        one.processor_us = static_cast<std::uint64_t>(activity->processor.count());
        one.bytes = activity->bytes;
        one.in_kernel = activity->in_kernel;
    }
    link_.send(std::move(seen));
}

/// The group is over but for its last checkpoint: nobody has a lease to renew any more.
void Agent::on_ending(const proto::local::GroupEndingT &ending) {
    if (exit_code_) return;
    fault_point("agent_ending");
    ending_ = true;  // a daemon that was restarted says it again, and waits anew
    wanted_.reset();
    for (Loop::Timer *timer : {&lease_timer_, &rejoin_timer_, &end_timer_}) loop_.cancel(*timer);
    end_timer_ = loop_.after(Loop::Duration(ending.wait_ms) + verdict_wait, [this] {
        end_timer_ = 0;
        err_.say("dlroverd on " + config_.node + " has not said how the group ended: giving up");
        end_with(end_signal_ != 0 ? 128 + end_signal_ : exit_lost_daemon);
    });
    if (end_signal_ != 0 && crew_.running() > 0)
        give_notice();
    else
        advance();
}

void Agent::give_notice() {
    if (notice_timer_ != 0) return;
    notice_timer_ = loop_.after(config_.notice_limit, [this] {
        notice_timer_ = 0;
        advance();
    });
}

/// Workers that have got the end signal may use their notice; everybody else is stopped.
void Agent::on_ended(proto::local::GroupEndedT ended) {
    if (exit_code_) return;
    exit_code_ = ended.exit_code;
    ended_ = std::move(ended);
    wanted_.reset();
    if (end_signal_ != 0 && crew_.running() > 0) give_notice();
    advance();
}

void Agent::on_world(World world) {
    if (id_of(world.generation) <= current_ || exit_code_ || ending_ || end_signal_ != 0) return;
    wanted_ = std::move(world);
    fault_point("agent_world_received");
    advance();
}

void Agent::on_stop(const proto::local::StopWorkersT &stop) {
    fault_point("agent_stop_received");
    stop_through_ = std::max(stop_through_, id_of(stop.generation));
    stop_reply_due_ = true;
    if (wanted_ && id_of(wanted_->generation) <= stop_through_) wanted_.reset();
    if (crew_.empty() || current_ > stop_through_) return report_stopped();
    // Who has left, and how long is waited for the others, the daemon knows.
    staying_ = stop.stays && !crew_.stopping();
    if (!staying_) crew_.stop(grace());
}

void Agent::report_stopped() {
    if (!link_.up()) return;
    stop_reply_due_ = false;
    proto::local::WorkersStoppedT stopped;
    stopped.generation = to_proto(stop_through_);
    link_.send(std::move(stopped));
}

// ---- the lease -----------------------------------------------------------------------------------

void Agent::arm_lease() {
    loop_.cancel(lease_timer_);
    if (welcome_.lease_ms == 0) return;
    auto due = lease_from_ + Loop::Duration(welcome_.lease_ms);
    auto left = std::chrono::ceil<Loop::Duration>(due - Loop::now());
    lease_timer_ = loop_.after(std::max(left, 1ms), [this] { check_lease(); });
}

bool Agent::leased() const {
    return welcome_.lease_ms == 0 || Loop::now() - lease_from_ < Loop::Duration(welcome_.lease_ms);
}

/// What comes too late renews nothing: this process, or the daemon, may have hung meanwhile.
void Agent::renew_lease(std::int64_t at_us) {
    auto now = Loop::now();
    auto now_us = std::chrono::floor<std::chrono::microseconds>(now.time_since_epoch()).count();
    bool is_now =
        at_us == 0 || at_us >= now_us;  // before it is made a time: that of any number could overflow
    auto said = is_now ? now : Loop::Time(std::chrono::microseconds(std::max<std::int64_t>(at_us, 0)));
    lease_from_ = std::max(lease_from_, said);
    if (!leased()) return;
    lease_asked_again_ = false;
    lease_lost_ = lease_lost_ && !crew_.empty();
    loop_.cancel(rejoin_timer_);
    if (lease_timer_ == 0 && !exit_code_ && !ending_) arm_lease();
    if (wanted_) advance_soon();
}

void Agent::check_lease() {
    lease_timer_ = 0;
    if (leased()) return arm_lease();
    // A newer word may be on its way behind those that filled the socket meanwhile.
    if (loop_.stood_still() && !std::exchange(lease_asked_again_, true)) {
        lease_timer_ = loop_.after(word_underway, [this] { check_lease(); });
        return;
    }
    if (!lease_lost_ && !exit_code_)
        lose_lease(Loop::Duration(welcome_.lease_ms));  // the next word arms it again
}

std::string Agent::silence(Loop::Duration lease) const {
    std::string whose = link_.up() ? config_.node + " has not heard from its group's leader for "
                                   : "no word from dlroverd on " + config_.node + " for ";
    return whose + format_duration(lease);
}

/// Its own daemon may be all right: a step begins when the daemons of enough nodes are there.
std::string Agent::why_giving_up() const {
    if (!link_.up())
        return "dlroverd on " + config_.node + " did not come back (" + why_not_joined_ +
               "): giving up; ask the administrator to look at that node";
    std::string waited = silence(config_.rejoin_limit) + ": giving up; ";
    if (current_ == GenerationId{})
        return waited + "tasks or dlroverd are missing on other nodes of this step: see what they have said";
    return waited + "ask the administrator to look at this node's network";
}

void Agent::lose_lease(Loop::Duration lease) {
    lease_lost_ = true;
    err_.say(silence(lease) + (crew_.empty() ? ": " : ": the workers are stopped; ") + "waiting up to " +
             format_duration(config_.rejoin_limit) +
             (link_.up() ? "" : " for it to come back (" + why_not_joined_ + ")"));
    await_lease();
    lease_stop_ = lease_stop_ || !crew_.empty();
    if (!crew_.empty()) crew_.stop(grace());
}

void Agent::await_lease() {
    loop_.cancel(rejoin_timer_);
    rejoin_timer_ = loop_.after(config_.rejoin_limit, [this] {
        rejoin_timer_ = 0;
        err_.say(why_giving_up());
        end_with(exit_lost_daemon);
    });
}

/// What the daemon did not ask for is a failure to it: only a new generation can follow. Two losses of the
/// lease are never "the same failure".
void Agent::report_exit(const proto::local::WorkerExitedT &exit) {
    if (!lease_stop_ || !exit.stopped_by_us) return link_.send(exit);
    proto::local::WorkerExitedT told = exit;
    told.stopped_by_us = false;
    told.signature = static_cast<std::uint64_t>(told.time_us);
    told.error_text = "stopped by the agent: no word from dlroverd on " + config_.node;
    link_.send(std::move(told));
}

// ---- the workers ---------------------------------------------------------------------------------

void Agent::advance_soon() {
    if (advance_timer_ == 0) advance_timer_ = loop_.after(0ms, [this] { advance(); });
}

void Agent::advance() {
    loop_.cancel(advance_timer_);
    bool wants_them_gone = exit_code_ || wanted_ || ending_;
    if (!crew_.empty()) {
        bool on_notice = notice_timer_ != 0 && crew_.running() > 0;
        if (goes_on()) return go_on();
        if (wants_them_gone && !on_notice) crew_.stop(grace());
        return;
    }
    if (exit_code_) return finish();
    // A world that was told and is not started yet stays wanted: the daemon waits for its ranks, or takes it
    // back.
    if (wanted_ && leased()) launch();
}

/// Whether the next world is for the processes of the one before.
bool Agent::goes_on() const {
    return staying_ && wanted_ && wanted_->active && leased() && !exit_code_ && !ending_ &&
           !crew_.stopping() && crew_.running() == config_.crew.workers;
}

void Agent::go_on() {
    World world = std::move(*wanted_);
    wanted_.reset();
    // Before the daemon hears that they are started.
    GenerationId before = std::exchange(current_, id_of(world.generation));
    member_of_ = current_;
    lease_stop_ = stop_reply_due_ = staying_ = false;
    Status told = crew_.go_on(world, LocalRank(welcome_.first_local_rank));
    if (told.ok()) return;
    err_.say("the workers on " + config_.node + " are started again, though they stay: " + told.message());
    current_ = member_of_ = before;
    wanted_ = std::move(world);
    crew_.stop(grace());
}

/// Its files may take their time to open: by then there may be another world, or no lease.
void Agent::prepare(const Preparation &wanted) {
    if (preparing_) return;
    discard_prepared();
    preparing_ = true;
    preparation_ = wanted;
    prepare_timer_ = loop_.after(slow_start, [this] {
        prepare_timer_ = 0;
        err_.say("the workers on " + config_.node +
                 " are not started yet: their logs, or the program, wait " + format_duration(slow_start) +
                 " for their file system");
    });
    crew_.prepare(*wanted_, LocalRank(wanted.first_local_rank), [this](Crew::Prepared prepared) {
        preparing_ = false;
        loop_.cancel(prepare_timer_);
        prepared_ = std::move(prepared);
        advance_soon();
    });
}

void Agent::discard_prepared() {
    if (prepared_) crew_.discard(*std::exchange(prepared_, std::nullopt));
}

void Agent::launch() {
    Preparation needed{id_of(wanted_->generation), welcome_.first_local_rank};
    if (wanted_->active && (!prepared_ || preparation_ != needed)) return prepare(needed);
    World world = std::move(*wanted_);
    wanted_.reset();
    current_ = id_of(world.generation);
    lease_stop_ = staying_ = false;
    member_of_ = world.active ? current_ : GenerationId{};
    if (!world.active) return;
    fault_point("agent_before_start");
    if (Status s = crew_.start(world, LocalRank(welcome_.first_local_rank), welcome_.lineage,
                               *std::exchange(prepared_, std::nullopt));
        !s.ok()) {
        err_.say("can not start the workers on " + config_.node + ": " + s.message());
        end_with(exit_cannot_run);
    }
}

void Agent::on_started(const proto::local::WorkerStartedT &start) {
    fault_point("agent_worker_started");
    pids_[start.local_rank] = static_cast<pid_t>(start.pid);
    link_.send(start);
    fault_point("agent_start_told");
}

void Agent::on_exited(const proto::local::WorkerExitedT &exit) {
    fault_point("agent_worker_ended");
    pids_.erase(exit.local_rank);
    if (died_of_end_signal(exit.wait_status) && !exit.stopped_by_us) {
        loop_.after(shared_signal_wait, [this, told = exit]() mutable {
            told.stopped_by_us = end_signal_ != 0;
            link_.send(told);
        });
    } else {
        report_exit(exit);
        fault_point("agent_end_told");
    }
    if (crew_.running() == 0) advance_timer_ = loop_.after(0ms, [this] { clear_leftovers(); });
}

/// The workers are gone; what they left behind goes too when they failed or the end is near.
void Agent::clear_leftovers() {
    advance_timer_ = 0;
    bool failed = false;
    for (const auto &exit : crew_.exited()) failed = failed || exit.wait_status != 0;
    if (end_signal_ != 0 && end_timer_ == 0 && !ending_)
        end_timer_ = loop_.after(verdict_wait, [this] { end_with(128 + end_signal_); });
    if (!crew_.empty() && (failed || end_signal_ != 0)) return crew_.stop(grace());
    if (crew_.empty() && std::exchange(staying_, false)) report_stopped();  // nobody is left who could leave
    advance();
}

void Agent::on_gone() {
    fault_point("agent_workers_gone");
    if (stop_reply_due_ || lease_stop_) {
        member_of_ = {};
        stop_through_ = std::max(stop_through_, current_);
        report_stopped();
    }
    advance_soon();
}

// ---- signals -------------------------------------------------------------------------------------

void Agent::on_signal_ready() {
    signalfd_siginfo info;
    while (::read(signal_fd_.get(), &info, sizeof info) == sizeof info)
        on_signal(static_cast<int>(info.ssi_signo));
}

void Agent::on_signal(int signal) {
    switch (signal) {
        case SIGCHLD:
            return crew_.reap();
        case SIGTERM:
        case SIGINT:
            return on_end_signal(signal);
        case SIGHUP:
            return config_.hangup_ends ? on_end_signal(signal) : crew_.forward(signal);
        case SIGTSTP:
            return crew_.pause(true);
        case SIGCONT:
            crew_.pause(false);
            return crew_.forward(signal);
        default:
            return crew_.forward(signal);
    }
}

void Agent::on_end_signal(int signal) {
    auto now = Loop::now();
    if (end_signal_ != 0) {
        if (now - end_signal_at_ < repeated_signal_after) return;
        loop_.cancel(notice_timer_);
        return end_with(128 + end_signal_);
    }
    fault_point("agent_end_signal");
    end_signal_ = signal;
    end_signal_at_ = now;
    wanted_.reset();
    proto::local::AgentSignalT message;
    message.signal = signal;
    link_.send(message);
    crew_.expect_end();
    crew_.forward(signal, signal == SIGHUP);
    fault_point("agent_signal_passed");
    if (crew_.running() == 0) clear_leftovers();
}

void Agent::on_life_line(std::size_t index) {
    loop_.forget(config_.life_lines[index]);
    loop_.cancel(notice_timer_);
    outcome_.orphaned = true;
    err_.say("the process above this one is gone: the workers are stopped");
    welcome_.stop_grace_ms = std::min<std::uint32_t>(welcome_.stop_grace_ms, orphaned_grace.count());
    end_with(exit_cannot_run);
}

// ---- the end -------------------------------------------------------------------------------------

void Agent::end_with(int exit_code) {
    if (!exit_code_) exit_code_ = exit_code;
    wanted_.reset();
    advance();
}

void Agent::print_end() {
    if (!ended_ || !ended_->print) return;
    if (!ended_->message.empty()) err_.say(ended_->message);
    if (ended_->summary.empty()) return;
    err_.write(ended_->summary, nullptr);
    if (ended_->summary.back() != '\n') err_.write("\n", nullptr);
}

/// First for whoever reads it, then for the files: those that move are waited for, those that hang are not.
void Agent::flush_output() {
    discard_prepared();
    if (own_err_) print_end();  // a reader of stdout alone that is away does not hold it up
    std::string elsewhere = out_.flush(last_flush);
    if (!own_err_) print_end();
    if (!elsewhere.empty()) err_.say("stdout takes no more: " + elsewhere);
    (void)err_.flush(last_flush);
    auto end = Loop::now() + longest_flush;
    for (auto before = bytes_written();; before = bytes_written()) {
        if (Aside::wait_for_all(Loop::now() + last_flush)) return;
        if (bytes_written() == before || Loop::now() >= end) break;
    }
    err_.say(preparing_
                 ? "the file system of the logs, or of the program, hangs: the workers were not started"
                 : "a file that output goes to takes no more, its file system hangs: what is missing there "
                   "is lost");
    (void)err_.flush(bye_flush);
}

void Agent::finish() {
    for (Loop::Timer *timer :
         {&start_timer_, &lease_timer_, &rejoin_timer_, &end_timer_, &notice_timer_, &prepare_timer_})
        loop_.cancel(*timer);
    outcome_.exit_code = *exit_code_;
    fault_point("agent_before_exit");
    flush_output();
    proto::local::AgentByeT bye;
    bye.exit_code = *exit_code_;
    link_.send(bye);
    link_.flush(bye_flush);
    link_.close();
    loop_.stop();
}

}  // namespace dlrover::agent
