// SPDX-License-Identifier: Apache-2.0
// One transfer on its receiving side, shared by the threads of its streams.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <vector>

#include "transport/bulk_server.h"
#include "transport/bulk_socket.h"

namespace dlrover::transport {

/// Thread: any.
class BulkTransfer {
  public:
    BulkTransfer(BulkTarget target, std::shared_ptr<Cancellation> cancellation);

    const BulkTarget &target() const noexcept { return target_; }
    const std::shared_ptr<Cancellation> &cancellation() const noexcept { return cancellation_; }

    /// A stream that has proved itself takes part. permission_denied: there is one of that number already, or
    /// another number of streams, or it is over.
    Status join(const BulkGreeting &greeting);
    /// A block's place; each is given once. corrupt: it was given before.
    Result<std::span<std::byte>> take(const BulkBlock &block);
    /// These are not sent. Blocks of other streams may have come before. corrupt: said twice, or one of these
    /// came.
    Status spare(std::vector<BulkSpared> spared);
    /// All blocks are there, however they came.
    void take_all();
    /// The stream brings nothing more.
    void end_stream();
    /// Whatever else happens, it has failed: all streams end. The first reason counts.
    void fail(Status why);
    /// By stream 0, after end_stream(): waits for the others, then verifies.
    Status finish();
    /// After join(), at the stream's very end: true for the last one of a transfer that is over, once.
    [[nodiscard]] bool leave();
    /// What `done` is told. Precondition: it is over.
    Status outcome() const;
    /// Fails where no stream is left that could.
    [[nodiscard]] bool expire(BulkTarget::Time now);
    /// No stream joins any more; waits for those that have.
    void close();

  private:
    bool over() const { return closed_ || !failure_.ok() || verified_; }
    Status wait_for_streams(std::unique_lock<std::mutex> &lock);

    const BulkTarget target_;
    const std::shared_ptr<Cancellation> cancellation_;
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<bool> joined_;  ///< by stream; empty before the first
    unsigned active_ = 0, ended_ = 0;
    std::vector<bool> taken_;  ///< by block
    std::uint64_t missing_ = 0;
    std::optional<std::vector<BulkSpared>> spared_;
    Status failure_;
    bool verified_ = false, closed_ = false, told_ = false;
};

/// What a failure is for whoever is told of it, too.
Status copy_of(const Status &status);

}  // namespace dlrover::transport
