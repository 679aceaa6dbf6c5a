// SPDX-License-Identifier: Apache-2.0
// The loop's in-memory twin: time stands still until a test moves it. No descriptors.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "common/event_loop.h"

namespace dlrover {

class ManualLoop final : public EventLoop {
  public:
    Time now() const override { return now_; }
    void post(Task task) override { tasks_->emplace(std::pair(now_, next_++), std::move(task)); }
    Handle after(Time delay, Task task) override {
        auto key = std::pair(now_ + delay, next_++);
        tasks_->emplace(key, std::move(task));
        return std::make_unique<Entry>(tasks_, key);
    }
    Handle when_readable(int, Task) override { return std::make_unique<Registration>(); }
    Handle when_writable(int, Task) override { return std::make_unique<Registration>(); }

    /// Runs everything that is due up to now + `duration`, in order of time, and stands there.
    void advance(Time duration = Time(0)) {
        Time until = now_ + duration;
        while (!tasks_->empty() && tasks_->begin()->first.first <= until) {
            auto first = tasks_->extract(tasks_->begin());
            now_ = std::max(now_, first.key().first);
            first.mapped()();
        }
        now_ = until;
    }

  private:
    using Key = std::pair<Time, std::uint64_t>;
    using Tasks = std::map<Key, Task>;
    class Entry final : public Registration {
      public:
        Entry(std::shared_ptr<Tasks> tasks, Key key) : tasks_(std::move(tasks)), key_(key) {}
        ~Entry() override { tasks_->erase(key_); }

      private:
        std::shared_ptr<Tasks> tasks_;
        Key key_;
    };
    Time now_{1000000};
    std::uint64_t next_ = 0;
    std::shared_ptr<Tasks> tasks_ = std::make_shared<Tasks>();
};

}  // namespace dlrover
