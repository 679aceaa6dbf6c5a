// SPDX-License-Identifier: Apache-2.0
// Where a rank's objects live: the daemon's slots, or plain files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "lib/global_tensors.h"
#include "lib/rank_objects.h"
#include "lib/share.h"

namespace dlrover::lib {

/// Memory for the object being saved; the store keeps it mapped until seal() or abort().
struct SaveTarget {
    std::byte *base = nullptr;
    std::uint64_t capacity = 0;
    TrainStep train_step;
    SlotIndex slot;
    /// The store's place for something that must end before it unmaps this memory.
    std::shared_ptr<void> *attached = nullptr;
    bool fresh = false;  ///< pages or page tables may be missing still
};
struct SaveSkipped {
    std::string reason;
};
/// What becomes of a save that finds no free slot. skip: nothing, and the group hears that this rank has no
/// object of the step. ask_again: the same step is begun once more.
enum class IfFull { skip, ask_again };

/// Where the parts of an object lie from its base on.
struct ObjectLayout {
    TrainStep train_step;
    std::uint64_t data_bytes = 0, table_offset = 0, table_bytes = 0, table_xxh3 = 0;
    std::vector<std::uint8_t> ledger;
    bool to_storage = false;  ///< once every rank has sealed this step
    std::vector<SharedWith> shared = {};
};

/// Another rank's object of the same step and generation, which keeps bytes for the one to restore.
struct KeeperObject {
    std::uint32_t rank = 0;
    const std::byte *base = nullptr;
    std::uint64_t bytes = 0;
    ObjectLayout layout;
    bool verified = false;  ///< its bytes were compared while the program started
};

/// An object to restore; the store keeps it mapped until close().
struct ObjectSource {
    const std::byte *base = nullptr;
    std::uint64_t bytes = 0;
    ObjectLayout layout;
    bool verified = false;  ///< its own bytes were checked: as they were read, or while the program started
    std::unique_ptr<GlobalTensors> tensors;  ///< of all ranks; none: this rank's own object is all there is
    std::unique_ptr<RankObjects> objects;    ///< together with `tensors`
    std::vector<KeeperObject> keepers = {};
    std::vector<const std::byte *> places =
        {};                 ///< of each chunk; none: own ones by their offset, others with their keepers
    std::string file = {};  ///< a plain file, for people; empty: none
};

struct RestoreEnd {
    std::string text;  ///< what was wrong; empty: nothing
    std::uint64_t took_us = 0;
    /// The rank whose object in memory does not match its checksums; of a step that is spread the store
    /// knows.
    std::optional<std::uint32_t> damaged;
};

/// Calls are serialised by the context's lock; the memory behind SaveTarget and ObjectSource is used without
/// it.
class Store {
  public:
    virtual ~Store() = default;
    /// -1: start from the beginning.
    virtual Result<std::int64_t> restore_step() = 0;
    virtual Status prepare(std::uint64_t bytes) = 0;
    /// The memory that is mapped for saves to come; the steps say nothing.
    virtual std::vector<SaveTarget> prepared() = 0;
    /// At most one save at a time.
    virtual Result<std::variant<SaveTarget, SaveSkipped>> begin(TrainStep step, std::uint64_t bytes,
                                                                IfFull if_full) = 0;
    /// Whether ObjectLayout::to_storage is heeded; unsupported: what has to be set. After begin().
    virtual Status can_go_to_storage() = 0;
    /// Ends the save, whatever the result. May have to move the object: its memory is not to be used
    /// afterwards.
    virtual Result<std::variant<std::monostate, SaveSkipped>> seal(const SaveTarget &target,
                                                                   const ObjectLayout &layout,
                                                                   std::uint64_t copy_us) = 0;
    virtual void abort(const SaveTarget &target) = 0;
    /// not_found: start from the beginning. At most one at a time.
    virtual Result<ObjectSource> open() = 0;
    virtual void close(const RestoreEnd &end) = 0;
};

}  // namespace dlrover::lib
