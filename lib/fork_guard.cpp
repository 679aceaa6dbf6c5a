// SPDX-License-Identifier: Apache-2.0
#include "lib/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>

#include "lib/context.h"

namespace dlrover::lib {
namespace {

constexpr std::size_t max_contexts = 16;
std::mutex registry_mutex;  // held across fork(), so that the child sees a whole list
std::array<dlrover_context *, max_contexts> registry{};
std::atomic<bool> is_child{false};

void before_fork() {
    registry_mutex.lock();
}
void in_parent() {
    registry_mutex.unlock();
}

/// Only system calls: other threads' locks may be held for ever here.
void in_child() {
    for (dlrover_context *&context : registry) {
        if (context == nullptr) continue;
        is_child.store(true);
        if (context->link && context->link->fd() >= 0) ::close(context->link->fd());
        if (context->events && context->events->poll_fd() >= 0) ::close(context->events->poll_fd());
        if (context->events && context->events->timer_fd() >= 0) ::close(context->events->timer_fd());
        context = nullptr;
    }
    registry_mutex.unlock();
}

}  // namespace

bool fork_guard_add(dlrover_context *context) {
    static std::once_flag once;
    std::call_once(once, [] { ::pthread_atfork(before_fork, in_parent, in_child); });
    std::lock_guard lock(registry_mutex);
    auto free = std::find(registry.begin(), registry.end(), nullptr);
    if (free == registry.end()) return false;
    *free = context;
    return true;
}

void fork_guard_remove(dlrover_context *context) {
    std::lock_guard lock(registry_mutex);
    std::replace(registry.begin(), registry.end(), context, static_cast<dlrover_context *>(nullptr));
}

bool forked() noexcept {
    return is_child.load(std::memory_order_relaxed);
}

}  // namespace dlrover::lib
