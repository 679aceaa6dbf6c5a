// SPDX-License-Identifier: Apache-2.0
// The tables of all objects of a step that a world of another size goes on from, gathered from the nodes that
// hold them into one memory, for the workers here: they find there whose objects they need.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/unique_fd.h"
#include "common/event_loop.h"
#include "daemon/arena.h"
#include "daemon/memory_budget.h"
#include "daemon/move_codec.h"
#include "daemon/table_reader.h"

namespace dlrover::daemon {

/// Thread: the event loop's.
class GroupTables {
  public:
    struct Services {
        EventLoop &loop;
        Arena &arena;
        ckpt::Prefaulter &prefaulter;
        MemoryBudget &budget;
        std::uint32_t uid = 0;
    };
    struct Hooks {
        std::function<void(NodeIndex to, const MoveWord &word)> send;
        std::function<std::string(NodeIndex)> name_of;
        std::function<bool(Rank, const CheckpointId &)> is_coming;  ///< that object is being made here
        /// Its table does not have its checksum. Never from inside a call.
        std::function<void(Rank rank, const CheckpointId &id, SlotIndex slot)> damaged;
    };
    /// What the world goes on from, and who holds each rank's object.
    struct Part {
        NodeIndex self;
        CheckpointId id;
        std::vector<NodeIndex> homes;
    };
    struct Table {
        std::uint64_t offset = 0;  ///< in the memory
        std::uint64_t got = 0;     ///< bytes that are there
        std::optional<local::SealT> object;
        std::optional<EventLoop::Time> asked_at;  ///< for the next piece
    };

    GroupTables(Services services, Hooks hooks);
    ~GroupTables();
    GroupTables(const GroupTables &) = delete;
    GroupTables &operator=(const GroupTables &) = delete;

    /// None: this world needs no tables.
    void on_world(std::optional<Part> part);
    /// A worker wants them: they come, or trouble() says why not.
    void begin();
    /// Nobody wants them now.
    void drop();
    void on_word(NodeIndex from, const MoveWord &word);
    /// The node that is to have the object makes it again.
    void on_wait(NodeIndex from, const MoveWord &word);

    bool whole() const { return part_ && here_ == part_->homes.size(); }
    const std::string &trouble() const { return trouble_; }
    std::uint32_t here() const { return here_; }
    std::uint32_t wanted() const { return part_ ? static_cast<std::uint32_t>(part_->homes.size()) : 0; }
    const std::vector<Table> &tables() const { return tables_; }
    std::uint64_t bytes() const { return bytes_; }
    /// Precondition: whole(). With a descriptor of its own that can not be written through.
    Result<SharedFd> memory() const;

  private:
    bool is_from(NodeIndex from, const MoveWord &word) const;
    void ask_more();
    void ask(std::uint32_t rank);
    void take(std::uint32_t rank, const MoveWord &word);
    Status place(Table &table, std::uint32_t rank, const MoveWord &word);
    void on_asked(const TableReader::Asker &asker, const MoveWord &word);
    void answer(const TableReader::Asker &asker, const MoveWord &word);
    MoveWord first_piece(Rank rank, const CheckpointId &id, const std::string &wrong);
    MoveWord piece(const MoveWord &asked);
    void seal_memory();
    void drop_memory();
    void fail(std::uint32_t rank, const std::string &why);
    void tick();

    Services services_;
    Hooks hooks_;
    std::optional<Part> part_;
    bool begun_ = false;
    UniqueFd memory_;
    std::uint64_t bytes_ = 0;
    std::vector<Table> tables_;
    std::uint32_t here_ = 0, next_ = 0, asked_ = 0;  ///< ranks: whole, to ask next, being asked
    EventLoop::Time heard_at_{0};
    std::string trouble_;
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
    EventLoop::Handle timer_;
    TableReader reader_;
};

}  // namespace dlrover::daemon
