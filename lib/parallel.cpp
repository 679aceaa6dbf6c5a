// SPDX-License-Identifier: Apache-2.0
#include "lib/parallel.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <vector>

#include "base/signals_blocked.h"
#include "lib/openmp_team.h"

namespace dlrover::lib {
namespace {

struct Loop {
    std::atomic<std::uint64_t> next{0};
    std::uint64_t count;
    const std::function<void(std::uint64_t)> &body;
    const Cpus &near;
    std::atomic<std::size_t> helpers{0};
    void help() {
        if (helpers.fetch_add(1, std::memory_order_relaxed) < near.size()) run_this_thread_on(near);
        run();
    }
    void run() {
        for (std::uint64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) body(i);
    }
};

void *run_loop(void *loop) {
    static_cast<Loop *>(loop)->help();
    return nullptr;
}

/// Threads that run the loop; fewer than wanted when they can not be had. It has ended when they have.
class Helpers {
  public:
    Helpers(Loop &loop, std::size_t wanted) {
        threads_.reserve(wanted);
        SignalsBlocked guard;
        for (std::size_t i = 0; i < wanted; ++i) {
            pthread_t thread;
            if (::pthread_create(&thread, nullptr, run_loop, &loop) != 0) break;
            threads_.push_back(thread);
        }
    }
    ~Helpers() {
        for (pthread_t thread : threads_) ::pthread_join(thread, nullptr);
    }
    Helpers(const Helpers &) = delete;
    Helpers &operator=(const Helpers &) = delete;

  private:
    std::vector<pthread_t> threads_;
};

/// As without a team: no more of its threads than wanted, and what the calling one throws reaches its caller,
/// after all have ended.
void run_by_team(Loop &loop, std::size_t helpers, const std::function<void()> &first) {
    const pthread_t caller = ::pthread_self();
    std::exception_ptr thrown;
    run_by_openmp_team([&] {
        if (::pthread_equal(::pthread_self(), caller) == 0) {
            if (loop.helpers.fetch_add(1, std::memory_order_relaxed) < helpers) loop.run();
            return;
        }
        try {
            first();
            loop.run();
        } catch (...) {
            thrown = std::current_exception();
        }
    });
    if (thrown) std::rethrow_exception(thrown);
}

}  // namespace

void parallel_for(std::uint64_t count, unsigned threads, const std::function<void(std::uint64_t)> &body) {
    parallel_for(count, threads, body, [] {});
}

void parallel_for(std::uint64_t count, unsigned threads, const std::function<void(std::uint64_t)> &body,
                  const std::function<void()> &first, const Cpus &near) {
    Loop loop{{}, count, body, near};
    auto wanted = static_cast<std::size_t>(std::min<std::uint64_t>(threads, count));
    if (wanted > 1 && near.empty() && openmp_team_spins()) return run_by_team(loop, wanted - 1, first);
    Helpers helpers(loop, wanted > 1 ? wanted - 1 : 0);
    first();
    loop.run();
}

Status parallel_try(std::uint64_t count, unsigned threads, const std::function<Status(std::uint64_t)> &body) {
    std::atomic<bool> failed{false};
    Status failure;
    parallel_for(count, threads, [&](std::uint64_t i) {
        if (failed.load(std::memory_order_relaxed)) return;
        Status status;
        try {
            status = body(i);
        } catch (const std::exception &) {
            status = Status(Code::resource_exhausted, "out of memory");
        }
        if (!status.ok() && !failed.exchange(true)) failure = std::move(status);
    });
    return failure;
}

}  // namespace dlrover::lib
