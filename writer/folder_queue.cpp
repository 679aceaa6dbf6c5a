// SPDX-License-Identifier: Apache-2.0
#include "writer/folder_queue.h"

#include <algorithm>
#include <thread>

#include "base/units.h"
#include "ckpt/checkpoint_folder.h"
#include "writer/attempt.h"
#include "writer/folder_look.h"

namespace dlrover::writer {
namespace {

using namespace std::chrono_literals;
constexpr auto first_pause = 20ms, longest_pause = 1000ms;

Status still_missing(const CompleteOrder &order, const std::vector<std::uint32_t> &ranks) {
    std::string data = ckpt::CheckpointFolder(order.to.folder).data_folder(order.checkpoint.id);
    return Status(Code::timeout,
                  std::string(ranks.size() == 1 ? "the file of rank " : "the files of ranks ") +
                      list_numbers(ranks) + " did not come into " + data + " within " +
                      format_duration(order.wait) + ": is " + order.to.top +
                      " on a file system that all nodes of the job share?");
}

}  // namespace

void FolderQueue::start() {
    std::thread([this] { run(); }).detach();
}

bool FolderQueue::submit(LookOrder order) {
    std::lock_guard lock(mutex_);
    if (looks_.size() >= max_looks) return false;
    looks_.push_back(std::move(order));
    wake_.notify_one();
    return true;
}

bool FolderQueue::submit(TestOrder order) {
    std::lock_guard lock(mutex_);
    if (tests_.size() >= max_looks) return false;
    tests_.push_back(std::move(order));
    wake_.notify_one();
    return true;
}

bool FolderQueue::submit(CompleteOrder order) {
    std::lock_guard lock(mutex_);
    if (completions_.size() >= max_completions) return false;
    auto waiting = std::make_shared<Waiting>();
    waiting->start = waiting->next_look = Clock::now();
    waiting->deadline = waiting->start + order.wait;
    waiting->pause = first_pause;
    waiting->order = std::move(order);
    completions_.push_back(std::move(waiting));
    wake_.notify_one();
    return true;
}

void FolderQueue::cancel(const Ticket &ticket) {
    std::lock_guard lock(mutex_);
    std::erase_if(looks_, [&](const LookOrder &look) { return look.ticket == ticket; });
    std::erase_if(completions_, [&](const auto &waiting) {
        if (waiting->order.ticket != ticket) return false;
        waiting->cancelled = true;
        return true;
    });
}

void FolderQueue::cancel_all() {
    std::lock_guard lock(mutex_);
    looks_.clear();
    tests_.clear();
    for (const auto &waiting : completions_) waiting->cancelled = true;
    completions_.clear();
}

/// Under the lock.
std::shared_ptr<FolderQueue::Waiting> FolderQueue::earliest() const {
    auto found = std::min_element(completions_.begin(), completions_.end(),
                                  [](auto &a, auto &b) { return a->next_look < b->next_look; });
    return found == completions_.end() ? nullptr : *found;
}

FolderQueue::Job FolderQueue::next_job() {
    std::unique_lock lock(mutex_);
    for (;;) {
        if (!looks_.empty()) {
            Job job{std::move(looks_.front()), {}, nullptr};
            looks_.pop_front();
            return job;
        }
        if (!tests_.empty()) {
            Job job{{}, std::move(tests_.front()), nullptr};
            tests_.pop_front();
            return job;
        }
        auto waiting = earliest();
        if (!waiting)
            wake_.wait(lock);
        else if (waiting->next_look <= Clock::now())
            return Job{{}, {}, std::move(waiting)};
        else
            wake_.wait_until(lock, waiting->next_look);
    }
}

std::vector<ckpt::CheckpointId> FolderQueue::others_than(const Waiting *waiting) {
    std::lock_guard lock(mutex_);
    std::vector<ckpt::CheckpointId> ids;
    for (const auto &other : completions_)
        if (other.get() != waiting) ids.push_back(other->order.checkpoint.id);
    return ids;
}

void FolderQueue::finish(const std::shared_ptr<Waiting> &waiting, Result<Completed> result) {
    const CompleteOrder &order = waiting->order;
    proto::local::CheckpointStoredT answer;
    answer.time_us = static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - waiting->start).count());
    answer.ok = result.ok();
    if (result.ok()) {
        answer.bytes = result->bytes;
        answer.removed = result->removed;
        answer.text = result->text;
    } else {
        answer.text = "step " + std::to_string(order.checkpoint.id.step.value()) +
                      " is not complete on storage: " + in_words(result.status(), order.to);
    }
    {
        std::lock_guard lock(mutex_);
        std::erase(completions_, waiting);
        if (waiting->cancelled) return;
    }
    outbox_.put(order.ticket, std::move(answer));
}

void FolderQueue::look(const LookOrder &order) {
    using proto::local::FolderFoundT;
    auto found = attempt<FolderFoundT>(
        [&] { return Result<FolderFoundT>(look_at_folder(order.to, run_, node_, order.passed_over)); });
    FolderFoundT answer;
    if (found.ok())
        answer = std::move(*found);
    else
        answer.text = found.status().message();
    outbox_.put(order.ticket, std::move(answer));
}

void FolderQueue::test(const TestOrder &order) {
    auto seen = attempt<bool>([&] {
        if (!order.make) return see_mark(order.to, run_, order.node, node_);
        Status made = make_mark(order.to, run_, order.node);
        return made.ok() ? Result<bool>(true) : Result<bool>(std::move(made));
    });
    proto::local::FolderTestedT answer;
    answer.ok = seen.ok() && *seen;
    if (!seen.ok()) answer.text = in_words(seen.status(), order.to);
    outbox_.put(order.ticket, std::move(answer));
}

void FolderQueue::serve(const std::shared_ptr<Waiting> &waiting) {
    const CompleteOrder &order = waiting->order;
    auto missing = attempt<std::vector<std::uint32_t>>([&] { return missing_ranks(order); });
    if (!missing) return finish(waiting, missing.take_status());
    if (missing->empty())
        return finish(waiting, attempt<Completed>([&] {
                          return complete(order, run_, others_than(waiting.get()), waiting->cancelled,
                                          indexes_);
                      }));
    auto now = Clock::now();
    if (now >= waiting->deadline) return finish(waiting, still_missing(order, *missing));
    std::lock_guard lock(mutex_);
    waiting->next_look = std::min(now + waiting->pause, waiting->deadline);
    waiting->pause = std::min<std::chrono::milliseconds>(2 * waiting->pause, longest_pause);
}

void FolderQueue::run() {
    for (;;) {
        Job job = next_job();
        if (job.look)
            look(*job.look);
        else if (job.test)
            test(*job.test);
        else
            serve(job.completion);
    }
}

}  // namespace dlrover::writer
