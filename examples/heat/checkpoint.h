// SPDX-License-Identifier: Apache-2.0
// The rank's state in and out of dlrover's memory.
#pragma once

#include <dlrover.h>

#include <cstdint>
#include <vector>

#include "examples/heat/phase.h"
#include "examples/heat/plate.h"

namespace heat {

class Checkpoints {
  public:
    /// Connects (or falls back to files); ends the program when this generation is over.
    explicit Checkpoints(std::uint64_t ballast_mb);
    ~Checkpoints();
    Checkpoints(const Checkpoints &) = delete;
    Checkpoints &operator=(const Checkpoints &) = delete;

    const dlrover_world &world() const { return world_; }
    /// Starts making room; call once the plate's size is known.
    void prepare(const Plate &plate);
    /// Steps already done, 0 from the beginning. Every byte of the plate must be there and of one step.
    std::uint64_t restore(Plate &plate);
    /// A skipped save, or one without a daemon, is counted; training goes on.
    void save(const Plate &plate, std::uint64_t step, PhaseFile &phase);
    void report(std::uint64_t step);
    std::uint64_t saved() const { return saved_; }
    std::uint64_t skipped() const { return skipped_; }

  private:
    void fill_ballast(std::uint64_t step);
    void restore_plate(const dlrover_restore *restore, Plate &plate);
    void check_ballast(const dlrover_restore *restore, std::uint64_t step);
    int add_plate(dlrover_save *save, const Plate &plate);
    int add_ballast(dlrover_save *save);
    void give_up_save(int error);
    std::uint64_t bytes(const Plate &plate) const;

    dlrover_context *context_ = nullptr;
    dlrover_world world_{};
    std::vector<std::uint64_t> ballast_;
    std::uint64_t saved_ = 0, skipped_ = 0;
};

}  // namespace heat
