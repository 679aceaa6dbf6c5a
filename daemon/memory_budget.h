// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "base/status.h"
#include "daemon/local_port.h"

namespace dlrover::daemon {

/// How much of the node each user's checkpoints hold, of memory and of the keeper's room for records, and
/// what the node can still give.
class MemoryBudget {
  public:
    struct Limits {
        std::uint64_t user_quota_bytes = 0;
        std::uint64_t floor_bytes = 0;       ///< of MemAvailable
        std::uint64_t user_segments = 3072;  ///< with 4 KiB of notes each, and a worker for each three
    };
    /// What a user holds, or more or less of it. The keeper has a record for each segment, for each slot (one
    /// has a segment at least) and for each worker; only those of slots can be long (noted_bytes() of a
    /// seal).
    struct Holding {
        std::uint64_t bytes = 0, segments = 0, workers = 0, noted_bytes = 0;
        std::uint64_t node_bytes = 0;  ///< of bytes: charged to the daemon
        friend bool operator==(const Holding &, const Holding &) = default;
    };
    /// What groups that are over hold for the next run of their job: it goes where somebody needs the room.
    class Kept {
      public:
        virtual ~Kept() = default;
        /// uid none: of all users.
        virtual Holding held(std::optional<std::uint32_t> uid) const = 0;
        /// What has been kept longest. false: nothing is left.
        virtual bool release(std::optional<std::uint32_t> uid) = 0;
    };
    /// `available_bytes`: MemAvailable, read anew at each call.
    MemoryBudget(Limits limits, std::function<std::uint64_t()> available_bytes)
        : limits_(limits), available_bytes_(std::move(available_bytes)) {}

    /// None: nothing is kept. It must stay until the next call.
    void use_kept(Kept *kept) { kept_ = kept; }
    /// resource_exhausted: beyond the user's share, or the node would fall below its floor; the text says
    /// what is needed and what there is. What is not asked for is not looked at. What is kept does not count,
    /// and stays.
    Status check(std::uint32_t uid, const Holding &more) const;
    /// The same for what is taken now: what is kept is released as far as that makes room, or not at all.
    Status make_room(std::uint32_t uid, const Holding &more);
    /// Others have taken what the floor is for.
    bool below_floor() const { return available() < limits_.floor_bytes; }
    /// These pages are being given back: they count as available until the answer is called, on any thread.
    std::function<void()> pages_leave(std::uint64_t bytes);
    /// MemSpecLimit: of all users' memory that is charged to the daemon. 0: none.
    void limit_node(std::uint64_t bytes) { node_limit_bytes_ = bytes; }
    /// Without a check: also what a former daemon granted counts.
    void add(std::uint32_t uid, const Holding &more);
    void remove(std::uint32_t uid, const Holding &less);
    /// Until end_filling() the pages that this memfd of `bytes` lacks are taken for used: they are not in
    /// MemAvailable yet.
    void begin_filling(const SharedFd &segment, std::uint64_t bytes);
    void end_filling(const SharedFd &segment);
    Holding held(std::uint32_t uid) const;
    std::uint64_t floor_bytes() const { return limits_.floor_bytes; }
    std::uint64_t available() const { return available_bytes_() + *leaving_; }

  private:
    Status check_share(const Holding &held, const Holding &more) const;
    Status check_node(const Holding &more, const Holding &without) const;
    std::uint64_t lacking_bytes() const;
    Limits limits_;
    std::function<std::uint64_t()> available_bytes_;
    std::map<std::uint32_t, Holding> held_;
    Kept *kept_ = nullptr;
    std::shared_ptr<std::atomic<std::uint64_t>> leaving_ = std::make_shared<std::atomic<std::uint64_t>>(0);
    std::map<SharedFd, std::uint64_t> filling_;
    std::uint64_t node_bytes_ = 0, node_limit_bytes_ = 0;
};

}  // namespace dlrover::daemon
