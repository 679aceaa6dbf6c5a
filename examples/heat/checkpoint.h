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
    /// Says what is to be saved and restored. The plate must stay where it is.
    void prepare(Plate &plate);
    /// Starts making memory ready for it.
    void make_room();
    /// Steps already done, 0 from the beginning. Every byte must be there and of one step.
    std::uint64_t restore();
    /// A skipped save, or one without a daemon, is counted; training goes on.
    void save(Plate &plate, std::uint64_t step, PhaseFile &phase);
    void report(std::uint64_t step);
    std::uint64_t saved() const { return saved_; }
    std::uint64_t skipped() const { return skipped_; }

  private:
    void protect(Plate &plate);
    void fill_ballast();
    void check_ballast();
    void give_up_save(int error);

    dlrover_context *context_ = nullptr;
    dlrover_world world_{};
    std::vector<std::uint64_t> ballast_;
    std::uint64_t step_ = 0;  ///< of the state as it was saved or restored
    std::uint64_t saved_ = 0, skipped_ = 0;
};

}  // namespace heat
