// SPDX-License-Identifier: Apache-2.0
#include "agent/crew.h"

#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "agent/files.h"
#include "agent/signature.h"
#include "base/process_tree.h"
#include "proto/local_codec.h"

namespace dlrover::agent {
namespace {

constexpr Loop::Duration kill_again{20};
constexpr std::chrono::seconds complain_after{10};
constexpr std::size_t most_error_file_bytes = 256 << 10;

std::int64_t epoch_us() {
    using namespace std::chrono;
    return duration_cast<microseconds>(system_clock::now().time_since_epoch()).count();
}

std::unique_ptr<proto::Generation> copy(const std::unique_ptr<proto::Generation> &g) {
    return std::make_unique<proto::Generation>(g ? *g : proto::Generation());
}

std::string log_file_in(const std::string &dir, bool is_err) {
    return dir + (is_err ? "/stderr.log" : "/stdout.log");
}

std::string file_name_of(std::string text) {
    for (char &c : text)
        if (c == '/' || c == ' ') c = '_';
    return text;
}

/// All workers that ended together: what they left in files is waited for, before their end is told.
constexpr Loop::Duration words_wait{500};

struct LogWish {
    std::string dir;  ///< empty: no file
    bool out = false, err = false;
};

Crew::Prepared prepare_files(const std::string &program, const std::vector<LogWish> &wishes) {
    Crew::Prepared prepared;
    prepared.program = find_program(program);
    for (const LogWish &wish : wishes) {
        auto &files = prepared.logs.emplace_back();
        if (!wish.out && !wish.err) continue;
        if (Status s = make_dirs(wish.dir); !s.ok()) prepared.status = std::move(s);
        for (bool is_err : {false, true}) {
            if (!(is_err ? wish.err : wish.out) || !prepared.status.ok()) continue;
            auto file = create_file(log_file_in(wish.dir, is_err));
            if (!file)
                prepared.status = file.take_status();
            else
                (is_err ? files.err : files.out) = std::move(*file);
        }
    }
    return prepared;
}

/// What a process with the one environment has to be told to have the other: NAME=VALUE, or NAME where it
/// goes. What is the same in both is the program's to change.
std::vector<std::string> changes(const Environment &before, const Environment &after) {
    std::vector<std::string> all;
    for (const auto &[name, value] : after)
        if (auto old = before.find(name); old == before.end() || old->second != value)
            all.push_back(name + "=" + value);
    for (const auto &[name, value] : before)
        if (!after.contains(name)) all.push_back(name);
    return all;
}

}  // namespace

struct Crew::Worker {
    proto::local::WorkerStartedT start;
    proto::local::WorkerExitedT exit;
    Rank rank;
    bool running = true;
    std::string error_file, stderr_file;
    Environment environment;  ///< as we made it, for the generation that it is in
    std::unique_ptr<Stream> out, err;
    UniqueFd exec_error;
};

Crew::Crew(Loop &loop, Sink &out, Sink &err, CrewConfig config, Events events)
    : loop_(loop),
      out_(out),
      err_(err),
      config_(std::move(config)),
      events_(std::move(events)),
      files_(loop),
      words_(loop) {}

Crew::~Crew() {
    loop_.cancel(kill_timer_);
}

void Crew::prepare(const proto::local::WorldPublishedT &world, LocalRank first_local_rank,
                   std::function<void(Prepared)> done) {
    std::vector<LogWish> wishes;
    for (unsigned i = 0; i < config_.workers; ++i) {
        LocalRank local(first_local_rank.value() + i);
        LogWish wish{log_dir_of(world, local)};
        unsigned wanted =
            wish.dir.empty() ? 0 : config_.logs.tee.of(local) | config_.logs.redirects.of(local);
        wish.out = (wanted & std_out_bit) != 0;
        wish.err = (wanted & std_err_bit) != 0;
        wishes.push_back(std::move(wish));
    }
    auto prepared = std::make_shared<Prepared>();
    files_.run([prepared, program = config_.argv.at(0),
                wishes = std::move(wishes)] { *prepared = prepare_files(program, wishes); },
               [prepared, done = std::move(done)] { done(std::move(*prepared)); });
}

Status Crew::start(const proto::local::WorldPublishedT &world, LocalRank first_local_rank,
                   const std::string &lineage, Prepared prepared) {
    Status status = std::move(prepared.status);
    if (status.ok()) {
        config_.launch.lineage = lineage.empty() ? world.run_id : lineage;
        status = start_all(world, first_local_rank, prepared);
    }
    discard(std::move(prepared));
    return status;
}

void Crew::discard(Prepared prepared) {
    auto held = std::make_shared<Prepared>(std::move(prepared));
    files_.run([held] { held->logs.clear(); });
}

Status Crew::start_all(const proto::local::WorldPublishedT &world, LocalRank first_local_rank,
                       Prepared &prepared) {
    workers_.clear();
    end_expected_ = complained_ = false;
    (void)oom_.newly_killed();
    if (first_local_rank.value() + config_.workers > world.local_world_size)
        return Status(Code::internal, "the world has fewer ranks on this node than its agents have workers");
    for (unsigned i = 0; i < config_.workers; ++i)
        DLROVER_TRY(start_worker(world, LocalRank(first_local_rank.value() + i), prepared.program,
                                 prepared.logs.at(i)));
    return {};
}

std::string Crew::log_dir_of(const proto::local::WorldPublishedT &world, LocalRank rank) const {
    if (config_.logs.dir.empty()) return {};
    std::string node =
        world.group_rank < world.node_names.size() ? world.node_names[world.group_rank] : "node";
    return config_.logs.dir + "/" + file_name_of(world.run_id + "_" + node) + "/attempt_" +
           std::to_string(world.restart_count) + "/" + std::to_string(rank.value());
}

SpillFile *Crew::spill_of(Rank rank, bool is_err) {
    auto &spill = spills_[{rank, is_err}];
    if (!spill) {
        std::string name = "dlrover-" + std::to_string(config_.launch.job.value()) + "." +
                           std::to_string(config_.launch.step.value()) + "-rank" +
                           std::to_string(rank.value()) + (is_err ? ".err" : ".out");
        spill = std::make_unique<SpillFile>(loop_, config_.spill_dir, name);
    }
    return spill.get();
}

/// Takes the log file as the plan's copy, unless the stream is redirected: then there is no sink, and the
/// worker writes the file itself.
StreamPlan Crew::plan_stream(Worker &worker, bool is_err, UniqueFd &log) {
    StreamPlan plan;
    plan.name = "rank " + std::to_string(worker.rank.value());
    plan.said_on = &err_;
    plan.sink = is_err ? &err_ : &out_;
    plan.spill = spill_of(worker.rank, is_err);
    plan.by_lines = config_.workers > 1;
    unsigned bit = is_err ? std_err_bit : std_out_bit;
    LocalRank local(worker.start.local_rank);
    bool tee = (config_.logs.tee.of(local) & bit) != 0;
    if (!log) return plan;
    if (!tee) {
        plan.sink = nullptr;
        return plan;
    }
    plan.copy = std::make_unique<FileWriter>(loop_, std::move(log));
    plan.by_lines = true;
    plan.prefix = "[" + config_.launch.role + std::to_string(local.value()) + "]:";
    return plan;
}

std::string Crew::error_file_of(const proto::local::WorldPublishedT &world, LocalRank local_rank) const {
    return config_.scratch + "/error-" + std::to_string(world.restart_count) + "-" +
           std::to_string(local_rank.value()) + ".json";
}

Environment Crew::environment_of(const proto::local::WorldPublishedT &world, LocalRank local_rank) const {
    return worker_environment(config_.base, config_.launch, world, local_rank,
                              error_file_of(world, local_rank));
}

void Crew::place(Worker &worker, const proto::local::WorldPublishedT &world, LocalRank local_rank) const {
    worker.rank = Rank(world.first_rank + local_rank.value());
    worker.start.generation = copy(world.generation);
    worker.start.local_rank = static_cast<std::uint16_t>(local_rank.value());
    worker.error_file = error_file_of(world, local_rank);
}

Status Crew::go_on(const proto::local::WorldPublishedT &world, LocalRank first_local_rank) {
    auto local_rank = [&](std::size_t i) {
        return LocalRank(first_local_rank.value() + static_cast<std::uint32_t>(i));
    };
    std::vector<Environment> environments;
    for (std::size_t i = 0; i < workers_.size(); ++i) {
        environments.push_back(environment_of(world, local_rank(i)));
        std::size_t bytes = 0;
        for (const std::string &text : changes(workers_[i]->environment, environments[i]))
            bytes += text.size() + sizeof text;
        if (bytes > proto::max_next_world_bytes)
            return Status(Code::resource_exhausted,
                          "what changes in its environment is " + std::to_string(bytes) + " bytes");
    }
    (void)oom_.newly_killed();
    for (std::size_t i = 0; i < workers_.size(); ++i) {
        Worker &worker = *workers_[i];
        place(worker, world, local_rank(i));
        worker.start.stayed = true;
        worker.start.variables = changes(worker.environment, environments[i]);
        worker.environment = std::move(environments[i]);
        events_.started(worker.start);
    }
    return {};
}

Status Crew::start_worker(const proto::local::WorldPublishedT &world, LocalRank local_rank,
                          const std::string &program, Prepared::LogFiles &logs) {
    auto worker = std::make_unique<Worker>();
    place(*worker, world, local_rank);
    worker->environment = environment_of(world, local_rank);
    auto out = plan_stream(*worker, false, logs.out), err = plan_stream(*worker, true, logs.err);
    if (!err.sink) worker->stderr_file = log_file_in(log_dir_of(world, local_rank), true);
    SpawnRequest request{config_.argv,   program,        to_strings(worker->environment),
                         logs.out.get(), logs.err.get(), config_.signals};
    auto spawned = spawn(request);
    if (!spawned) return spawned.take_status();
    empty_ = false;
    worker->start.pid = static_cast<std::uint32_t>(spawned->pid);
    worker->exec_error = std::move(spawned->exec_error);
    if (out.sink)
        worker->out = std::make_unique<Stream>(loop_, std::move(spawned->stdout_pipe), std::move(out));
    if (err.sink)
        worker->err = std::make_unique<Stream>(loop_, std::move(spawned->stderr_pipe), std::move(err));
    workers_.push_back(std::move(worker));
    events_.started(workers_.back()->start);
    return {};
}

void Crew::reap() {
    words_until_ = Loop::now() + words_wait;
    int wait_status = 0;
    pid_t pid;
    while ((pid = ::waitpid(-1, &wait_status, WNOHANG)) > 0 || (pid < 0 && errno == EINTR)) {
        auto is_it = [&](const auto &w) {
            return w->running && w->start.pid == static_cast<std::uint32_t>(pid);
        };
        auto at = std::find_if(workers_.begin(), workers_.end(), is_it);
        if (pid > 0 && at != workers_.end()) on_worker_end(**at, wait_status);
    }
    // Every descendant is a child of ours or of one: without children there is nobody.
    empty_ = pid < 0 && errno == ECHILD;
    if (stopping_ && empty_) return finish_stop();
    if (killing_) (void)kill_descendants(::getpid());
}

struct Crew::Words {
    std::string error_file, from_stderr;
};

/// Nothing where the file system takes too long: the other workers' end may be due.
Crew::Words Crew::read_words(const Worker &worker) {
    Words words;
    if (worker.err) words.from_stderr = worker.err->tail();
    if (words_.busy()) return words;
    // Its error file is on this node, mostly: that a log hangs takes nothing from it.
    auto error = std::make_shared<std::string>(), log = std::make_shared<std::string>();
    words_.run([error, file = worker.error_file] { *error = read_tail(file, most_error_file_bytes); });
    if (!words_.wait(words_until_)) return words;
    words.error_file = std::move(*error);
    if (worker.stderr_file.empty()) return words;
    words_.run([log, file = worker.stderr_file] { *log = read_tail(file, Stream::tail_bytes); });
    if (words_.wait(words_until_)) words.from_stderr = std::move(*log);
    return words;
}

/// Of a failed worker. That its program can not be run is said here, once: the next start changes nothing.
std::string Crew::last_words(const Worker &worker, std::string from_stderr) {
    int error = read_exec_error(worker.exec_error);
    if (error == 0) return from_stderr;
    std::string text = why_not_run(config_.argv.at(0), error);
    if (!said_not_run_) err_.say(text);
    said_not_run_ = true;
    return text;
}

void Crew::on_worker_end(Worker &worker, int wait_status) {
    worker.running = false;
    for (auto *stream : {worker.out.get(), worker.err.get()})
        if (stream) stream->finish();
    auto &exit = worker.exit;
    exit.generation = copy(worker.start.generation);
    exit.local_rank = worker.start.local_rank;
    exit.pid = worker.start.pid;
    exit.wait_status = wait_status;
    exit.time_us = epoch_us();
    exit.stopped_by_us = stopping_ || end_expected_;
    if (wait_status != 0) {
        exit.oom = WIFSIGNALED(wait_status) && oom_.newly_killed() > 0;
        Words words = read_words(worker);
        auto report = describe_failure(wait_status, std::move(words.error_file),
                                       last_words(worker, std::move(words.from_stderr)));
        exit.signature = report.signature;
        exit.error_text = std::move(report.text);
    }
    worker.exec_error.reset();
    events_.exited(exit);
}

void Crew::stop(Loop::Duration grace) {
    auto now = Loop::now();
    if (!stopping_) {
        stopping_ = true;
        kill_began_ = now + grace;
        signal_descendants(::getpid(), SIGTERM);
        signal_descendants(::getpid(), SIGCONT);
        kill_timer_ = loop_.after(grace, [this] { kill_round(); });
    } else if (!killing_ && now + grace < kill_began_) {
        loop_.cancel(kill_timer_);
        kill_began_ = now + grace;
        kill_timer_ = loop_.after(grace, [this] { kill_round(); });
    }
    reap();
}

void Crew::kill_round() {
    killing_ = true;
    bool quiet = kill_descendants(::getpid());
    if (!quiet && !complained_ && Loop::now() - kill_began_ > complain_after) {
        complained_ = true;
        err_.say("a process of this step does not die though it was killed; waiting for it");
    }
    kill_timer_ = loop_.after(kill_again, [this] { kill_round(); });
    reap();
}

void Crew::finish_stop() {
    loop_.cancel(kill_timer_);
    stopping_ = killing_ = false;
    for (auto &worker : workers_) {
        for (auto *stream : {worker->out.get(), worker->err.get()})
            if (stream) stream->finish();
        worker->out.reset();
        worker->err.reset();
        files_.run([file = worker->error_file] { ::unlink(file.c_str()); });
    }
    events_.gone();
}

std::size_t Crew::running() const {
    return static_cast<std::size_t>(
        std::count_if(workers_.begin(), workers_.end(), [](const auto &w) { return w->running; }));
}

std::vector<proto::local::WorkerStartedT> Crew::started() const {
    std::vector<proto::local::WorkerStartedT> all;
    for (const auto &worker : workers_) all.push_back(worker->start);
    return all;
}

std::vector<proto::local::WorkerExitedT> Crew::exited() const {
    std::vector<proto::local::WorkerExitedT> all;
    for (const auto &worker : workers_)
        if (!worker->running) all.push_back(worker->exit);
    return all;
}

void Crew::forward(int signal, bool to_groups) {
    to_groups = to_groups || signal == SIGINT;
    for (const auto &worker : workers_) {
        auto pid = static_cast<pid_t>(worker->start.pid);
        // A worker that has not left our group yet has none.
        if (worker->running && (!to_groups || ::kill(-pid, signal) != 0)) ::kill(pid, signal);
    }
}

void Crew::pause(bool on) {
    signal_descendants(::getpid(), on ? SIGSTOP : SIGCONT);
}

}  // namespace dlrover::agent
