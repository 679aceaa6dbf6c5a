// SPDX-License-Identifier: Apache-2.0
#include "agent/verifier.h"

#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "ckpt/mapping.h"
#include "ckpt/object_message.h"
#include "ckpt/segment_grants.h"

namespace dlrover::agent {

struct Verifier::Job {
    std::uint64_t order = 0;
    ckpt::KnownObject object;
    std::vector<ckpt::SegmentGrant> segments;
    std::atomic<bool> stop{false};
    proto::local::ObjectVerifiedT answer;  ///< once it is done
};

namespace {

std::size_t threads_allowed() {
    cpu_set_t cpus;
    int count = ::sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
    return std::clamp<std::size_t>(static_cast<std::size_t>(count) / 2, 1, Verifier::most_threads);
}

Status look_at(std::vector<ckpt::SegmentGrant> segments, const ckpt::KnownObject &object,
               const std::atomic<bool> &stop) {
    if (stop) return Status(Code::stale, "the order was cancelled");
    auto memory =
        ckpt::SegmentRange::map(std::move(segments), ckpt::Access::read_only, ckpt::PageTables::later);
    if (!memory) return Status(Code::unavailable, memory.status().message());  // says nothing of its bytes
    std::uint64_t end = object.place.table_offset + object.place.table_bytes;
    if (end < object.place.table_offset || end > memory->bytes() || object.place.data_bytes > end)
        return Status(Code::invalid_argument, "the object is longer than its memory");
    return ckpt::verify_object({memory->base(), end}, object, &stop);
}

}  // namespace

Verifier::~Verifier() {
    cancel_all();
    {
        std::lock_guard lock(mutex_);
        ending_ = true;
    }
    changed_.notify_all();
    for (std::thread &thread : threads_) thread.join();
    if (wake_) loop_.forget(wake_.get());
}

Status Verifier::begin() {
    wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake_) return Status::from_errno("eventfd");
    return loop_.watch(wake_.get(), EPOLLIN, [this](std::uint32_t) { on_ready(); });
}

void Verifier::add_thread() {
    try {
        threads_.emplace_back([this] { work(); });
    } catch (const std::system_error &) {
        return;  // those that there are do it; without any nobody has looked
    }
}

Status Verifier::verify(const proto::local::VerifyObjectT &order, std::vector<UniqueFd> fds) {
    if (!wake_) DLROVER_TRY(begin());
    auto object = ckpt::object_in(order);
    if (!object) return object.take_status();
    auto job = std::make_shared<Job>();
    job->order = order.order;
    job->object = std::move(*object);
    job->segments = ckpt::to_grants(order.segments, std::move(fds));
    bool thread_wanted;
    {
        std::lock_guard lock(mutex_);
        if (waiting_.size() >= max_waiting)
            return Status(Code::resource_exhausted, "too many objects wait to be verified");
        waiting_.push_back(job);
        thread_wanted = waiting_.size() > idle_ && threads_.size() < threads_allowed();
    }
    open_[job->order] = std::move(job);
    if (thread_wanted) add_thread();
    changed_.notify_one();
    return {};
}

void Verifier::cancel(std::uint64_t order) {
    auto it = open_.find(order);
    if (it == open_.end()) return;
    it->second->stop = true;
    std::lock_guard lock(mutex_);
    std::erase(waiting_, it->second);
    open_.erase(it);
}

void Verifier::cancel_all() {
    while (!open_.empty()) cancel(open_.begin()->first);
}

std::shared_ptr<Verifier::Job> Verifier::next() {
    std::unique_lock lock(mutex_);
    ++idle_;
    changed_.wait(lock, [&] { return ending_ || !waiting_.empty(); });
    --idle_;
    if (ending_) return nullptr;
    auto job = std::move(waiting_.front());
    waiting_.pop_front();
    return job;
}

void Verifier::work() {
    using Clock = std::chrono::steady_clock;
    while (auto job = next()) {
        auto start = Clock::now();
        Status status = look_at(std::move(job->segments), job->object, job->stop);
        auto spent = std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start);
        job->answer.order = job->order;
        job->answer.ok = status.ok();
        job->answer.damaged = status.code() == Code::corrupt;
        job->answer.text = status.message();
        if (status.ok()) job->answer.bytes = job->object.place.data_bytes + job->object.place.table_bytes;
        job->answer.time_us = static_cast<std::uint64_t>(spent.count());
        std::lock_guard lock(mutex_);
        done_.push_back(std::move(job));
        std::uint64_t one = 1;
        (void)!::write(wake_.get(), &one, sizeof one);
    }
}

void Verifier::on_ready() {
    std::uint64_t count;
    (void)!::read(wake_.get(), &count, sizeof count);
    std::vector<std::shared_ptr<Job>> done;
    {
        std::lock_guard lock(mutex_);
        done = std::exchange(done_, {});
    }
    for (const auto &job : done) {
        auto open = open_.find(job->order);
        if (open == open_.end() || open->second != job) continue;  // another order of that number by now
        open_.erase(open);
        on_verified_(std::move(job->answer));
    }
}

}  // namespace dlrover::agent
