// SPDX-License-Identifier: Apache-2.0
// The thread that looks at folders and completes checkpoints, so that neither waits for objects being stored.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "helper/outbox.h"
#include "writer/completion.h"
#include "writer/folder_look.h"
#include "writer/folder_mark.h"

namespace dlrover::writer {

using helper::Outbox;
using helper::Ticket;

struct LookOrder {
    Ticket ticket;
    Destination to;
    std::vector<PassedOver> passed_over;
};

/// Of proto::local::TestFolder.
struct TestOrder {
    Ticket ticket;
    Destination to;
    std::string node;
    bool make = false;
};

/// Checkpoints that wait for files are looked at in turns. Thread of the members: any. Lives as long as the
/// process.
class FolderQueue {
  public:
    static constexpr std::size_t max_looks = 16, max_completions = 16;
    static constexpr std::uint64_t max_frame_bytes = 16u << 20;  ///< kept for the next index

    /// `node`: part of a temporary name.
    FolderQueue(Outbox &outbox, RunId run, std::string node)
        : outbox_(outbox), run_(std::move(run)), node_(std::move(node)) {}
    FolderQueue(const FolderQueue &) = delete;
    FolderQueue &operator=(const FolderQueue &) = delete;
    void start();

    /// False: too many wait.
    [[nodiscard]] bool submit(LookOrder order);
    [[nodiscard]] bool submit(TestOrder order);
    [[nodiscard]] bool submit(CompleteOrder order);
    /// Not answered. What is begun ends at the next opportunity before the manifest.
    void cancel(const Ticket &ticket);
    void cancel_all();

  private:
    using Clock = std::chrono::steady_clock;
    struct Waiting {
        CompleteOrder order;
        Clock::time_point start, deadline, next_look;
        std::chrono::milliseconds pause;
        std::atomic<bool> cancelled{false};
    };
    /// One of them.
    struct Job {
        std::optional<LookOrder> look;
        std::optional<TestOrder> test;
        std::shared_ptr<Waiting> completion;
    };
    void run();
    Job next_job();
    std::shared_ptr<Waiting> earliest() const;
    void look(const LookOrder &order);
    void test(const TestOrder &order);
    void serve(const std::shared_ptr<Waiting> &waiting);
    void finish(const std::shared_ptr<Waiting> &waiting, Result<Completed> result);
    std::vector<ckpt::CheckpointId> others_than(const Waiting *waiting);

    Outbox &outbox_;
    const RunId run_;
    const std::string node_;
    ckpt::StorageFrames indexes_{max_frame_bytes};  ///< the thread's
    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<LookOrder> looks_;
    std::deque<TestOrder> tests_;
    std::vector<std::shared_ptr<Waiting>> completions_;  ///< the one in hand is among them
};

}  // namespace dlrover::writer
