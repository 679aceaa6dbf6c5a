// SPDX-License-Identifier: Apache-2.0
// Compares objects in the node's memory with their checksums, while the programs start that go on from them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "agent/loop.h"
#include "base/unique_fd.h"
#include "proto/local_codec.h"

namespace dlrover::agent {

/// Works on threads of its own, which begin with the first orders: at most `most_threads`, and half of the
/// processors that this process may use. One object is one thread's. Thread: the loop's.
class Verifier {
  public:
    static constexpr std::size_t max_waiting = 2048;
    static constexpr unsigned most_threads = 4;
    using OnVerified = std::function<void(proto::local::ObjectVerifiedT)>;

    Verifier(Loop &loop, OnVerified on_verified) : loop_(loop), on_verified_(std::move(on_verified)) {}
    /// Waits for the blocks in work.
    ~Verifier();
    Verifier(const Verifier &) = delete;
    Verifier &operator=(const Verifier &) = delete;

    /// `on_verified` follows, unless it is cancelled; after a failure it does not.
    Status verify(const proto::local::VerifyObjectT &order, std::vector<UniqueFd> fds);
    void cancel(std::uint64_t order);
    /// Orders are those of a connection, which has ended.
    void cancel_all();

  private:
    struct Job;
    Status begin();
    void add_thread();
    void work();
    std::shared_ptr<Job> next();
    void on_ready();

    Loop &loop_;
    OnVerified on_verified_;
    UniqueFd wake_;
    std::map<std::uint64_t, std::shared_ptr<Job>> open_;  ///< neither answered nor cancelled
    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::condition_variable changed_;
    // Guarded by mutex_:
    std::deque<std::shared_ptr<Job>> waiting_;
    std::vector<std::shared_ptr<Job>> done_;
    std::size_t idle_ = 0;
    bool ending_ = false;
};

}  // namespace dlrover::agent
