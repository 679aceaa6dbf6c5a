// SPDX-License-Identifier: Apache-2.0
#include "agent/aside.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace dlrover::agent {
namespace {

/// Of the whole process; never destroyed, since a thread that was left behind may still count.
struct UnderWay {
    std::mutex mutex;
    std::condition_variable changed;
    std::size_t calls = 0;

    void add(std::ptrdiff_t more) {
        {
            std::lock_guard lock(mutex);
            calls += static_cast<std::size_t>(more);
        }
        changed.notify_all();
    }
};

UnderWay &under_way() {
    static auto *all = new UnderWay;
    return *all;
}

struct Order {
    Aside::Call call;
    Loop::OnTime done;
};

}  // namespace

struct Aside::State {
    UniqueFd wake;
    std::mutex mutex;
    std::condition_variable changed;
    // Guarded by mutex:
    std::deque<Order> waiting;
    std::vector<Loop::OnTime> over;
    bool ending = false;

    /// The thread. It holds the state, not the object.
    static void work(const std::shared_ptr<State> &state) {
        for (;;) {
            Order order;
            {
                std::unique_lock lock(state->mutex);
                state->changed.wait(lock, [&] { return state->ending || !state->waiting.empty(); });
                if (state->waiting.empty()) return;
                order = std::move(state->waiting.front());
                state->waiting.pop_front();
            }
            order.call();
            order.call = nullptr;  // what it owns may take as long to let go
            {
                std::lock_guard lock(state->mutex);
                state->over.push_back(std::move(order.done));
                std::uint64_t one = 1;
                (void)!::write(state->wake.get(), &one, sizeof one);
            }
            state->changed.notify_all();
            under_way().add(-1);
        }
    }
};

Aside::~Aside() {
    if (!state_) return;
    loop_.forget(state_->wake.get());
    {
        std::lock_guard lock(state_->mutex);
        state_->ending = true;
        state_->over.clear();
        for (Order &order : state_->waiting) order.done = nullptr;
    }
    state_->changed.notify_all();
}

Status Aside::begin() {
    auto state = std::make_shared<State>();
    state->wake.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!state->wake) return Status::from_errno("eventfd");
    DLROVER_TRY(loop_.watch(state->wake.get(), EPOLLIN, [this](std::uint32_t) { on_ready(); }));
    try {
        std::thread([state] { State::work(state); }).detach();
    } catch (const std::system_error &error) {
        loop_.forget(state->wake.get());
        return Status(Code::resource_exhausted, error.what());
    }
    state_ = std::move(state);
    return {};
}

void Aside::run(Call call, Loop::OnTime done) {
    if (!state_ && !begin().ok()) {
        call();
        if (done) done();
        return;
    }
    under_way().add(1);
    ++open_;
    {
        std::lock_guard lock(state_->mutex);
        state_->waiting.push_back({std::move(call), std::move(done)});
    }
    state_->changed.notify_all();
}

bool Aside::busy() const {
    return open_ != 0;
}

void Aside::on_ready() {
    std::uint64_t count;
    (void)!::read(state_->wake.get(), &count, sizeof count);
    std::vector<Loop::OnTime> over;
    {
        std::lock_guard lock(state_->mutex);
        over = std::exchange(state_->over, {});
    }
    open_ -= over.size();
    for (auto held = state_; auto &done : over)
        if (done && !held->ending) done();  // one of them may end this object
}

bool Aside::wait(Loop::Time deadline) {
    while (open_ != 0) {
        {
            std::unique_lock lock(state_->mutex);
            if (!state_->changed.wait_until(lock, deadline, [&] { return !state_->over.empty(); }))
                return false;
        }
        on_ready();
    }
    return true;
}

bool Aside::wait_for_all(Loop::Time deadline) {
    UnderWay &all = under_way();
    std::unique_lock lock(all.mutex);
    return all.changed.wait_until(lock, deadline, [&] { return all.calls == 0; });
}

}  // namespace dlrover::agent
