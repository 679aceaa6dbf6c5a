// SPDX-License-Identifier: Apache-2.0
#include "lib/parallel.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <vector>

#include "base/signals_blocked.h"

namespace dlrover::lib {
namespace {

struct Loop {
    std::atomic<std::uint64_t> next{0};
    std::uint64_t count;
    const std::function<void(std::uint64_t)> &body;
    void run() {
        for (std::uint64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) body(i);
    }
};

void *run_loop(void *loop) {
    static_cast<Loop *>(loop)->run();
    return nullptr;
}

}  // namespace

void parallel_for(std::uint64_t count, unsigned threads, const std::function<void(std::uint64_t)> &body) {
    Loop loop{{}, count, body};
    std::vector<pthread_t> helpers;
    auto wanted = static_cast<std::size_t>(std::min<std::uint64_t>(threads, count));
    helpers.reserve(wanted);
    {
        SignalsBlocked guard;
        for (std::size_t i = 1; i < wanted; ++i) {
            pthread_t helper;
            if (::pthread_create(&helper, nullptr, run_loop, &loop) != 0) break;
            helpers.push_back(helper);
        }
    }
    loop.run();
    for (pthread_t helper : helpers) ::pthread_join(helper, nullptr);
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
