// SPDX-License-Identifier: Apache-2.0
#include "daemon/slurm_client.h"

#include <algorithm>

#include "common/log.h"

namespace dlrover::daemon {

std::string companion_mark(JobId job, StepId step, std::uint32_t restart_count) {
    return "dlrover:" + std::to_string(job.value()) + "." + std::to_string(step.value()) + "." +
           std::to_string(restart_count);
}

std::string left_mark(StepId step, std::uint32_t restart_count, const std::string &node) {
    return "dlrover-without:" + std::to_string(step.value()) + "." + std::to_string(restart_count) + ":" +
           node;
}

std::string grown_mark(StepId step, std::uint32_t restart_count, const std::string &node) {
    return "dlrover-node:" + std::to_string(step.value()) + "." + std::to_string(restart_count) + ":" + node;
}

/// A question under way. `given_up` is shared with the thread, the rest belongs to the loop.
template <typename R>
struct QueuedSlurmClient::Pending {
    std::function<void(R)> answer;
    std::atomic<bool> given_up = false;
    std::uint64_t timer = 0;
};

QueuedSlurmClient::QueuedSlurmClient(EventLoop &loop, std::shared_ptr<SlurmCalls> calls, Options options)
    : loop_(loop),
      calls_(std::move(calls)),
      options_(options),
      cluster_(calls_->cluster_name()),
      thread_(loop, options.max_waiting) {}

QueuedSlurmClient::~QueuedSlurmClient() {
    *alive_ = false;
}

namespace {

Code code_of(const Status &status) {
    return status.code();
}
template <typename T>
Code code_of(const Result<T> &result) {
    return result.status().code();
}

}  // namespace

void QueuedSlurmClient::note_answer(Code code) {
    bool away = code == Code::unavailable || code == Code::timeout;
    if (std::exchange(away_, away) && !away)
        loop_.post([alive = alive_, this] {
            for (std::size_t i = 0; *alive && i < on_return_.size(); ++i) on_return_[i]();
        });
}

template <typename R, typename Call>
void QueuedSlurmClient::enqueue(Call call, std::function<void(R)> answer, Asker asker) {
    auto pending = std::make_shared<Pending<R>>();
    pending->answer = std::move(answer);
    auto finish = [this, pending](R result) {
        if (pending->given_up.exchange(true)) return;
        timers_.erase(pending->timer);
        note_answer(code_of(result));
        pending->answer(std::move(result));
    };
    pending->timer = next_timer_++;
    timers_[pending->timer] = loop_.after(options_.timeout, [finish] {
        auto keep = finish;  // the timer that holds this function is dropped inside
        keep(R(Status(Code::timeout, "Slurm did not answer in time")));
    });
    auto job = [calls = calls_, call = std::move(call), pending, finish]() -> WorkerThread::Completion {
        if (pending->given_up) return {};
        auto result = std::make_shared<R>(call(*calls));
        return [finish, result] { finish(std::move(*result)); };
    };
    auto turn = asker == Asker::group ? WorkerThread::Turn::first : WorkerThread::Turn::last;
    if (thread_.submit(std::move(job), turn)) return;
    loop_.post([alive = alive_, finish] {
        if (*alive) finish(R(Status(Code::unavailable, "too many questions wait for Slurm")));
    });
}

void QueuedSlurmClient::load_step(JobId job, StepId step, Answer<SlurmStep> answer) {
    enqueue<Result<SlurmStep>>([job, step](SlurmCalls &calls) { return calls.load_step(job, step); },
                               std::move(answer));
}

void QueuedSlurmClient::load_job(JobId job, Answer<SlurmJob> answer, Asker asker) {
    enqueue<Result<SlurmJob>>([job](SlurmCalls &calls) { return calls.load_job(job); }, std::move(answer),
                              asker);
}

namespace {

Result<std::map<JobId, SlurmJob>> load_each(SlurmCalls &calls, const std::vector<JobId> &jobs) {
    std::map<JobId, SlurmJob> found;
    for (JobId job : jobs) {
        auto loaded = calls.load_job(job);
        if (loaded.ok())
            found[job] = std::move(*loaded);
        else if (loaded.status().code() != Code::not_found)
            return loaded.take_status();
    }
    return found;
}

}  // namespace

void QueuedSlurmClient::load_jobs(std::vector<JobId> jobs, Answer<std::map<JobId, SlurmJob>> answer) {
    enqueue<Result<std::map<JobId, SlurmJob>>>(
        [jobs = std::move(jobs)](SlurmCalls &calls) { return load_each(calls, jobs); }, std::move(answer));
}

void QueuedSlurmClient::load_jobs_of(std::uint32_t uid, Answer<std::vector<SlurmJob>> answer) {
    enqueue<Result<std::vector<SlurmJob>>>([uid](SlurmCalls &calls) { return calls.load_jobs_of(uid); },
                                           std::move(answer), Asker::person);
}

void QueuedSlurmClient::load_addresses(std::vector<std::string> nodes,
                                       Answer<std::vector<NodeAddress>> answer, Asker asker) {
    enqueue<Result<std::vector<NodeAddress>>>(
        [nodes = std::move(nodes)](SlurmCalls &calls) { return calls.load_addresses(nodes); },
        std::move(answer), asker);
}

void QueuedSlurmClient::shrink_job(JobId job, std::vector<std::string> survivors, Done done) {
    enqueue<Status>([job, survivors = std::move(survivors)](
                        SlurmCalls &calls) { return calls.shrink_job(job, survivors); },
                    std::move(done));
}

void QueuedSlurmClient::complete_headless(JobId job, HeadlessEnd end, Answer<bool> over) {
    enqueue<Result<bool>>([job, end](SlurmCalls &calls) { return calls.complete_headless(job, end); },
                          std::move(over));
}

void QueuedSlurmClient::submit_companion(CompanionOrder order, Answer<JobId> answer) {
    enqueue<Result<JobId>>(
        [order = std::move(order)](SlurmCalls &calls) { return calls.submit_companion(order); },
        std::move(answer));
}

void QueuedSlurmClient::grow_job(CompanionOrder order, Answer<Growth> answer) {
    enqueue<Result<Growth>>([order = std::move(order)](SlurmCalls &calls) { return calls.grow_job(order); },
                            std::move(answer));
}

void QueuedSlurmClient::load_companions(std::uint32_t uid, std::string mark,
                                        Answer<std::vector<Companion>> answer) {
    enqueue<Result<std::vector<Companion>>>(
        [uid, mark = std::move(mark)](SlurmCalls &calls) { return calls.load_companions(uid, mark); },
        std::move(answer));
}

void QueuedSlurmClient::mark_companion(JobId job, std::string mark, Done done) {
    enqueue<Status>(
        [job, mark = std::move(mark)](SlurmCalls &calls) { return calls.mark_companion(job, mark); },
        std::move(done));
}

void QueuedSlurmClient::cancel_job(JobId job, Done done) {
    enqueue<Status>([job](SlurmCalls &calls) { return calls.cancel_job(job); }, std::move(done));
}

void QueuedSlurmClient::drain_node(std::string node, std::string reason, Done done) {
    enqueue<Status>([node = std::move(node), reason = std::move(reason)](
                        SlurmCalls &calls) { return calls.drain_node(node, reason); },
                    std::move(done));
}

void QueuedSlurmClient::load_site(Answer<SiteCapabilities> answer) {
    enqueue<Result<SiteCapabilities>>([](SlurmCalls &calls) { return calls.load_site(); }, std::move(answer));
}

namespace {

bool contains(const std::vector<std::string> &words, const std::string &word) {
    return std::find(words.begin(), words.end(), word) != words.end();
}

/// Answers with the nodes that are left. Without those that are gone Slurm does not wait for them at the end
/// of this run, and counts steps from 0 in the next. Where it refuses, it waits.
Result<std::vector<std::string>> requeue_without(SlurmCalls &calls, JobId job, const RequeueOrder &order) {
    auto loaded = calls.load_job(job);
    if (!loaded) return loaded.take_status();
    if (loaded->restart_count != order.restart_count || loaded->waiting)
        return Status(Code::stale, "the job has been requeued already");
    bool is_out = !order.asker.empty() && loaded->running && !contains(loaded->nodes, order.asker);
    if (is_out || contains(loaded->left, order.mark))
        return Status(Code::invalid_argument, "the job goes on without " + order.asker);
    auto left = loaded->nodes;
    std::erase_if(left, [&](const std::string &node) { return contains(order.excluded, node); });
    auto stay = loaded->nodes;
    std::erase_if(stay, [&](const std::string &node) {
        return !contains(left, node) && node != loaded->batch_host;  // or Slurm refuses all
    });
    Status shrunk;
    if (!stay.empty() && stay.size() < loaded->nodes.size()) shrunk = calls.shrink_job(job, stay);
    DLROVER_TRY(calls.requeue_job(job));
    if (!shrunk.ok())
        log::warning(
            "slurm: job " + std::to_string(job.value()) +
            " is requeued with nodes that it has lost, so its next run may wait for SlurmdTimeout: " +
            shrunk.message());
    return left;
}

}  // namespace

/// Answered when Slurm has taken the job back; its next start is seen to afterwards.
void QueuedSlurmClient::requeue_job(JobId job, RequeueOrder order, Done done) {
    using Left = Result<std::vector<std::string>>;
    enqueue<Left>([job, order](SlurmCalls &calls) { return requeue_without(calls, job, order); },
                  [this, job, order, done = std::move(done)](Left left) {
                      if (left.ok())
                          hasten_first(job, {order.restart_count + 1, order.excluded, *left, order.suspects});
                      done(left.take_status());
                  });
}

/// What the run before was not to have is another matter.
void QueuedSlurmClient::hasten_first(JobId job, NextRunOrder order) {
    HastenOrder first;
    first.restart_count = order.restart_count;
    first.excluded = std::move(order.excluded);
    first.preferred = std::move(order.preferred);
    first.suspects = std::move(order.suspects);
    first.frees = true;
    hasten(job, {std::move(first), options_.hasten_tries}, options_.hasten_pause);
}

void QueuedSlurmClient::hasten_job(JobId job, NextRunOrder order, Done done) {
    hasten_first(job, std::move(order));
    loop_.post([done = std::move(done)] { done({}); });
}

void QueuedSlurmClient::free_job(JobId job, std::uint32_t restart_count, bool also_untie, Done done) {
    HastenOrder order{.restart_count = restart_count, .hastens = also_untie, .frees = true};
    enqueue<Result<Hastened>>(
        [job, order](SlurmCalls &calls) { return calls.hasten_job(job, order); },
        [done = std::move(done)](Result<Hastened> answer) {
            bool ends = answer.ok() && *answer == Hastened::ending;
            done(ends ? Status(Code::unavailable, "the last run is still ending") : answer.take_status());
        });
}

void QueuedSlurmClient::mark_left(JobId job, std::uint32_t restart_count, std::vector<std::string> marks,
                                  Done done) {
    enqueue<Status>([job, restart_count, marks = std::move(marks)](
                        SlurmCalls &calls) { return calls.mark_left(job, restart_count, marks); },
                    std::move(done));
}

void QueuedSlurmClient::hasten(JobId job, NextRun next, EventLoop::Time pause) {
    std::uint64_t timer = next_timer_++;
    timers_[timer] = loop_.after(pause, [this, timer, job, next] {
        auto held = std::move(timers_[timer]);
        timers_.erase(timer);
        enqueue<Result<Hastened>>(
            [job, order = next.order](SlurmCalls &calls) { return calls.hasten_job(job, order); },
            [this, job, next](const Result<Hastened> &answer) { on_hastened(job, next, answer); });
    });
}

/// A job that can not be tied to those nodes, or is, and does not start on them after all, takes any.
void QueuedSlurmClient::on_hastened(JobId job, NextRun next, const Result<Hastened> &answer) {
    if (answer.ok() && *answer == Hastened::ending) {
        bool is_long = ++next.seen_ending > options_.hasten_often;
        return hasten(job, std::move(next), is_long ? options_.hasten_seldom : options_.hasten_pause);
    }
    bool is_away = answer.status().code() == Code::unavailable || answer.status().code() == Code::timeout;
    if (is_away && next.tries_left > 0) {
        --next.tries_left;
        return hasten(job, std::move(next), options_.hasten_pause);
    }
    if (answer.status().code() == Code::invalid_argument && !next.order.preferred.empty()) {
        next.order.preferred.clear();  // Slurm does not take those nodes
        return hasten(job, std::move(next), options_.hasten_pause);
    }
    if (!answer.ok()) {
        if (!next.was_tied && next.order.hastens && answer.status().code() != Code::stale)
            log::warning("slurm: job " + std::to_string(job.value()) +
                         " is requeued but could not be hastened: " + answer.status().message());
        return;
    }
    if (*answer == Hastened::too_early) {
        next.early_since = next.early_since.value_or(loop_.now());
        next.order.anyhow = loop_.now() - *next.early_since >= options_.preferred_patience;
        return hasten(job, std::move(next), options_.hasten_pause);
    }
    if (*answer == Hastened::starts) {
        NextRun freed{{.restart_count = next.order.restart_count, .hastens = false, .frees = true},
                      options_.hasten_tries};
        if (!next.order.excluded.empty()) hasten(job, std::move(freed), options_.excluded_patience);
        return;
    }
    next.was_tied = true;
    next.order.preferred.clear();
    hasten(job, std::move(next), options_.preferred_patience);
}

}  // namespace dlrover::daemon
