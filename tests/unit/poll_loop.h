// SPDX-License-Identifier: Apache-2.0
// A loop on poll(2) for tests with real sockets: runs until a condition holds or a deadline has passed.
#pragma once

#include <poll.h>

#include <list>
#include <map>
#include <mutex>
#include <vector>

#include "common/event_loop.h"

namespace dlrover::test {

class PollLoop final : public EventLoop {
  public:
    Time now() const override {
        return std::chrono::duration_cast<Time>(std::chrono::steady_clock::now().time_since_epoch());
    }
    void post(Task task) override {
        std::lock_guard lock(mutex_);
        posted_.push_back(std::move(task));
    }
    Handle after(Time delay, Task task) override {
        auto timers = timers_;
        auto it = timers->emplace(now() + delay, std::make_shared<Task>(std::move(task)));
        return std::make_unique<Entry<Timers>>(timers, it->second);
    }
    Handle when_readable(int fd, Task task) override { return watch(fd, POLLIN, std::move(task)); }
    Handle when_writable(int fd, Task task) override { return watch(fd, POLLOUT, std::move(task)); }

    /// Whether `done` became true in time.
    template <typename Condition>
    bool run_until(Condition done, Time limit = std::chrono::seconds(10)) {
        Time deadline = now() + limit;
        while (!done()) {
            if (now() >= deadline) return false;
            turn();
        }
        return true;
    }
    void run_for(Time duration) {
        run_until([] { return false; }, duration);
    }

  private:
    struct Watch {
        int fd;
        short events;
        Task task;
    };
    using Timers = std::multimap<Time, std::shared_ptr<Task>>;
    using Watches = std::map<std::shared_ptr<Task>, Watch>;

    template <typename Table>
    class Entry final : public Registration {
      public:
        Entry(std::shared_ptr<Table> table, std::shared_ptr<Task> task)
            : table_(table), task_(std::move(task)) {}
        ~Entry() override { remove(*table_); }

      private:
        void remove(Timers &timers) {
            std::erase_if(timers, [this](const auto &entry) { return entry.second == task_; });
        }
        void remove(Watches &watches) { watches.erase(task_); }
        std::shared_ptr<Table> table_;
        std::shared_ptr<Task> task_;
    };

    Handle watch(int fd, short events, Task task) {
        auto key = std::make_shared<Task>(std::move(task));
        watches_->emplace(key, Watch{fd, events, {}});
        return std::make_unique<Entry<Watches>>(watches_, key);
    }

    void turn() {
        std::vector<Task> posted;
        {
            std::lock_guard lock(mutex_);
            posted.swap(posted_);
        }
        for (auto &task : posted) task();
        while (!timers_->empty() && timers_->begin()->first <= now()) {
            auto task = timers_->begin()->second;
            timers_->erase(timers_->begin());
            (*task)();
        }
        poll_once();
    }

    void poll_once() {
        std::vector<pollfd> fds;
        std::vector<std::shared_ptr<Task>> keys;
        for (const auto &[key, watch] : *watches_) {
            fds.push_back({watch.fd, watch.events, 0});
            keys.push_back(key);
        }
        if (::poll(fds.data(), fds.size(), 1) <= 0) return;
        for (std::size_t i = 0; i < fds.size(); ++i)
            if (fds[i].revents != 0 && watches_->count(keys[i]) > 0) (*keys[i])();
    }

    std::mutex mutex_;
    std::vector<Task> posted_;
    std::shared_ptr<Timers> timers_ = std::make_shared<Timers>();
    std::shared_ptr<Watches> watches_ = std::make_shared<Watches>();
};

}  // namespace dlrover::test
