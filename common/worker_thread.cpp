// SPDX-License-Identifier: Apache-2.0
#include "common/worker_thread.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "base/signals_blocked.h"

namespace dlrover {

struct WorkerThread::Shared {
    std::mutex mutex;
    std::condition_variable wake;
    std::deque<Job> first, last;
    EventLoop *loop = nullptr;  ///< null: the owner is gone
};

WorkerThread::WorkerThread(EventLoop &loop, std::size_t max_waiting)
    : shared_(std::make_shared<Shared>()), max_waiting_(max_waiting) {
    shared_->loop = &loop;
    SignalsBlocked guard;
    std::thread([shared = shared_] { run(shared); }).detach();
}

WorkerThread::~WorkerThread() {
    std::lock_guard lock(shared_->mutex);
    shared_->loop = nullptr;
    shared_->first.clear();
    shared_->last.clear();
    shared_->wake.notify_one();
}

bool WorkerThread::submit(Job job, Turn turn) {
    std::lock_guard lock(shared_->mutex);
    std::deque<Job> &jobs = turn == Turn::first ? shared_->first : shared_->last;
    if (jobs.size() >= max_waiting_) return false;
    jobs.push_back(std::move(job));
    shared_->wake.notify_one();
    return true;
}

void WorkerThread::run(const std::shared_ptr<Shared> &shared) {
    for (;;) {
        Job job;
        {
            std::unique_lock lock(shared->mutex);
            std::deque<Job> &first = shared->first, &last = shared->last;
            shared->wake.wait(lock, [&] { return !first.empty() || !last.empty() || !shared->loop; });
            if (!shared->loop) return;
            std::deque<Job> &jobs = first.empty() ? last : first;
            job = std::move(jobs.front());
            jobs.pop_front();
        }
        deliver(shared, job());
    }
}

/// The loop is only touched under the lock, so it outlives the post.
void WorkerThread::deliver(const std::shared_ptr<Shared> &shared, Completion completion) {
    std::lock_guard lock(shared->mutex);
    if (!shared->loop || !completion) return;
    shared->loop->post([shared, completion = std::move(completion)] {
        // On the loop's thread, as the destructor is: no lock needed to look.
        if (shared->loop) completion();
    });
}

}  // namespace dlrover
