// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>

#include "common/event_loop.h"
#include "daemon/arena.h"

namespace dlrover::daemon {

/// Reads the tables of objects that are here. A table can have ckpt::max_table_bytes, as its user likes: a
/// turn of the loop reads a part that takes it less than a millisecond, of one object of the group. Thread:
/// the event loop's.
class TableReader {
  public:
    using Asker = std::optional<NodeIndex>;  ///< none: this node
    struct Hooks {
        /// `wrong` is empty: the table has its checksum. To each asker once, however often he has asked
        /// meanwhile, and in a turn of the loop of his own.
        std::function<void(Rank rank, const CheckpointId &id, const Asker &asker, const std::string &wrong)>
            checked;
        /// Its table does not have its checksum. Never from inside a call.
        std::function<void(Rank rank, const CheckpointId &id, SlotIndex slot)> damaged;
    };
    TableReader(EventLoop &loop, Arena &arena, Hooks hooks);
    ~TableReader();
    TableReader(const TableReader &) = delete;
    TableReader &operator=(const TableReader &) = delete;

    /// Compares the table with its checksum. `checked` comes later.
    void check(Rank rank, const CheckpointId &id, Asker asker);
    /// Bytes of that object from `at` on.
    static Status read(const Arena::Object &object, std::uint64_t at, std::span<std::uint8_t> out);

  private:
    struct Check;
    void later(EventLoop::Task task);
    void turn();
    void finish(const Status &status);

    EventLoop &loop_;
    Arena &arena_;
    Hooks hooks_;
    std::deque<std::unique_ptr<Check>> checks_;  ///< the first is being read
    std::vector<std::uint8_t> part_;
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dlrover::daemon
