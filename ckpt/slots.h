// SPDX-License-Identifier: Apache-2.0
// Which slot of a rank holds what, and which may be written next. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/ids.h"
#include "base/status.h"

namespace dlrover::ckpt {

/// Who holds or reads a slot: a connection. 0: nobody (a slot granted before a restart of the daemon).
using Holder = std::uint64_t;
/// Set in a holder who can not be stopped at once (who copies another node's object here): his slots are free
/// only when he says so.
inline constexpr Holder lasting_holder = Holder{1} << 63;

enum class SlotState : std::uint8_t { free, granted, sealed };

struct Slot {
    SlotState state = SlotState::free;
    Holder holder = 0;        ///< granted: who writes
    TrainStep step;           ///< granted, sealed
    GenerationId generation;  ///< granted, sealed
    std::uint32_t readers = 0;
};

struct Grant {
    SlotIndex slot;
    bool overwrites = false;  ///< a sealed object is given up with this grant
};

/// The slots of one rank. A slot is written again only when a newer step is complete and nobody reads it, so
/// a crash in the middle of any copy leaves the newest complete step untouched.
class SlotTable {
  public:
    explicit SlotTable(std::uint32_t count) : slots_(count) {}
    /// As many at least; new ones are free.
    void extend(std::uint32_t count) { slots_.resize(std::max<std::size_t>(count, slots_.size())); }

    /// A slot to write `step` into: a free one first, else the oldest that may be reused. `usable(index)`
    /// says whether the slot's memory suffices. none: skip this save.
    template <typename Usable>
    std::optional<Grant> grant(Holder holder, TrainStep step, GenerationId generation, Usable usable) {
        auto slot = choose(usable);
        if (!slot) return std::nullopt;
        return take(*slot, holder, step, generation);
    }
    /// stale: not granted to this holder for this step and generation. already_exists: it is sealed in
    /// another slot, unless this one `replaces` that; the slot is free then.
    Status seal(SlotIndex slot, Holder holder, TrainStep step, GenerationId generation,
                bool replaces = false);
    Status abort(SlotIndex slot, Holder holder);
    /// After a restart of the daemon: what the records say.
    void restore_sealed(SlotIndex slot, TrainStep step, GenerationId generation);
    /// What was thought to be there is not. Who reads it goes on, and the slot is not written until then.
    void void_slot(SlotIndex slot) {
        Slot empty;
        empty.readers = slots_[slot.value()].readers;
        slots_[slot.value()] = empty;
    }
    /// Nobody is going to write here any more: what may be reused is free. Whether an object has gone.
    bool free_reusable();
    void restore_granted(SlotIndex slot, TrainStep step, GenerationId generation);
    /// The writer is back after the daemon's restart: what was granted then in its generation is its own.
    void adopt_grants(Holder holder, GenerationId generation);

    /// Every rank has sealed it: older sealed slots may be reused, those of this step of older generations,
    /// too. Until then an older generation's object of the same step is kept beside the newer one: it may be
    /// the complete one, and the newer one may never be.
    /// `keep` may not be reused, though it is older.
    void complete(const CheckpointId &id, const std::optional<CheckpointId> &keep = std::nullopt);
    /// Objects of `generation` before `below`, but not the complete one, can never be complete: they are
    /// given up, those that are sealed later too.
    void give_up(TrainStep below, GenerationId generation, std::optional<TrainStep> complete);
    /// `generation` begins, and goes on from `from`: what older generations have beyond it is void, and so is
    /// what was sealed of the same step in a later one.
    void rewind(std::optional<CheckpointId> from, GenerationId generation);
    /// Older ones than this may be reused; with rewind() it is `from`.
    const std::optional<CheckpointId> &freed() const { return complete_; }
    void set_freed(const std::optional<CheckpointId> &id) { complete_ = id; }
    const std::optional<CheckpointId> &kept() const { return kept_; }
    /// Sealed, read by nobody, and older than what complete() said.
    bool is_outdated(SlotIndex slot) const {
        const Slot &s = slots_[slot.value()];
        return s.state == SlotState::sealed && s.readers == 0 && outdated(s);
    }
    /// Generations before `generation` write no more, but for lasting holders.
    void release_grants_before(GenerationId generation);
    void release_grants_of(Holder holder);

    /// That object, sealed.
    std::optional<SlotIndex> find(const CheckpointId &id) const;
    /// The step's object of the newest generation.
    std::optional<SlotIndex> find_newest(TrainStep step) const;
    void add_reader(SlotIndex slot);
    void drop_reader(SlotIndex slot);

    const std::vector<Slot> &slots() const noexcept { return slots_; }

  private:
    struct GivenUp {
        GenerationId generation;
        TrainStep below;
        std::optional<TrainStep> complete;
    };
    bool reusable(const Slot &slot) const;
    bool outdated(const Slot &slot) const;
    bool given_up(const Slot &slot) const;
    Grant take(SlotIndex index, Holder holder, TrainStep step, GenerationId generation);
    bool granted_to(SlotIndex slot, Holder holder) const;

    template <typename Usable>
    std::optional<SlotIndex> choose(Usable usable) const {
        std::optional<SlotIndex> best;
        for (std::uint32_t i = 0; i < slots_.size(); ++i) {
            const Slot &s = slots_[i];
            if (!reusable(s) || !usable(SlotIndex(i))) continue;
            if (s.state == SlotState::free) return SlotIndex(i);
            if (!best || s.step < slots_[best->value()].step) best = SlotIndex(i);
        }
        return best;
    }

    std::vector<Slot> slots_;
    std::optional<CheckpointId> complete_, kept_;
    std::optional<GivenUp> given_up_;
};

}  // namespace dlrover::ckpt
