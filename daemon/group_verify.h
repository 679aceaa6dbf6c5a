// SPDX-License-Identifier: Apache-2.0
// What the ranks of a node go on from is compared with its checksums by the agents, while the programs start:
// so that a worker that opens it has its views at once. The daemon itself reads none of the bytes.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/event_loop.h"
#include "daemon/arena.h"
#include "daemon/local_port.h"

namespace dlrover::daemon {

/// Nothing here outlives the daemon: after its restart workers look for themselves. Thread: the event loop's.
class GroupVerify {
  public:
    static constexpr std::size_t max_objects = 2048;  ///< of one world

    struct Services {
        EventLoop &loop;
        LocalPort &port;
        Arena &arena;
    };
    /// Of the present world.
    struct Sums {
        std::size_t objects = 0;
        std::uint64_t bytes = 0;
        std::chrono::microseconds longest{0};  ///< of one object
    };
    /// Since the group began, or the daemon was started.
    struct Totals {
        std::uint64_t agent_objects = 0, agent_bytes = 0, rank_objects = 0, rank_bytes = 0, damaged = 0;
    };
    struct Hooks {
        /// Not from inside a call.
        std::function<void(Rank rank, const CheckpointId &id, SlotIndex slot)> damaged;
        std::function<void(const Sums &sums)> all_verified = {};
    };
    struct Task {
        Rank rank;
        ConnectionId agent = 0;
    };

    GroupVerify(Services services, Hooks hooks) : services_(services), hooks_(std::move(hooks)) {}
    ~GroupVerify();
    GroupVerify(const GroupVerify &) = delete;
    GroupVerify &operator=(const GroupVerify &) = delete;

    /// Precondition: until the world ends nobody can write these objects but who is granted their slots.
    /// What was begun or found before counts no more.
    void begin(const CheckpointId &id, std::uint32_t world_size, const std::vector<Task> &tasks);
    void stop();

    /// A worker opens that object. False: it has to look itself; nobody else does any more.
    bool take(Rank rank, const CheckpointId &id, const Arena::Object &object);
    /// It is not here any more.
    void forget(Rank rank);
    /// What anybody has found damaged was dropped.
    void count_damaged() { ++totals_.damaged; }
    const Totals &totals() const { return totals_; }

    /// Why that object of the present world is not here any more, where it was found damaged; else empty.
    std::string trouble(Rank rank) const;

    void on_answer(ConnectionId agent, const local::ObjectVerifiedT &answer);
    void on_agent_gone(ConnectionId agent);

  private:
    struct Object {
        SlotIndex slot;
        std::uint64_t order = 0, bytes = 0;
        ConnectionId agent = 0;
        bool verified = false;  ///< else it is being looked at, and the slot is being read
    };
    using Objects = std::map<Rank, Object>;

    bool all_verified() const;
    void order(const Task &task, std::uint32_t world_size);
    Objects::iterator give_up(Objects::iterator object);

    Services services_;
    Hooks hooks_;
    CheckpointId id_;
    Objects objects_;
    std::map<Rank, std::string> damaged_;
    std::uint64_t last_order_ = 0;
    Sums sums_;
    Totals totals_;
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dlrover::daemon
