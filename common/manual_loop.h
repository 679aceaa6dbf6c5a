// SPDX-License-Identifier: Apache-2.0
// The loop's in-memory twin: time stands still until a test moves it. No descriptors.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "common/event_loop.h"

namespace dlrover {

/// Thread: post() from any, as EventLoop says; all else on one.
class ManualLoop final : public EventLoop {
  public:
    Time now() const override { return tasks_->now; }
    void post(Task task) override { tasks_->add(Time(0), std::move(task)); }
    Handle after(Time delay, Task task) override {
        return std::make_unique<Entry>(tasks_, tasks_->add(now() + delay, std::move(task)));
    }
    Handle when_readable(int, Task) override { return std::make_unique<Registration>(); }
    Handle when_writable(int, Task) override { return std::make_unique<Registration>(); }

    /// Runs everything that is due up to now + `duration`, in order of time, and stands there.
    void advance(Time duration = Time(0)) {
        Time until = now() + duration;
        while (auto due = tasks_->take_due(until)) {
            tasks_->now = std::max(now(), due.key().first);
            due.mapped()();
        }
        tasks_->now = until;
    }

  private:
    using Key = std::pair<Time, std::uint64_t>;
    struct Tasks {
        std::mutex mutex;
        std::map<Key, Task> waiting;
        std::uint64_t next = 0;
        std::atomic<Time> now{Time(1000000)};

        /// At `when`, but not before now.
        Key add(Time when, Task task) {
            std::lock_guard lock(mutex);
            Key key{std::max<Time>(when, now), next++};
            waiting.emplace(key, std::move(task));
            return key;
        }
        /// An empty node: nothing is due.
        std::map<Key, Task>::node_type take_due(Time until) {
            std::lock_guard lock(mutex);
            if (waiting.empty() || waiting.begin()->first.first > until) return {};
            return waiting.extract(waiting.begin());
        }
        /// The task goes when the lock is free again: it may own other entries.
        std::map<Key, Task>::node_type take(Key key) {
            std::lock_guard lock(mutex);
            return waiting.extract(key);
        }
    };
    class Entry final : public Registration {
      public:
        Entry(std::shared_ptr<Tasks> tasks, Key key) : tasks_(std::move(tasks)), key_(key) {}
        ~Entry() override { tasks_->take(key_); }

      private:
        std::shared_ptr<Tasks> tasks_;
        Key key_;
    };
    std::shared_ptr<Tasks> tasks_ = std::make_shared<Tasks>();
};

}  // namespace dlrover
