// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace heat {

struct Options {
    std::uint32_t size = 256;       ///< cells per side
    std::uint64_t steps = 1000;     ///< steps in all
    std::uint64_t save_every = 10;  ///< steps between checkpoints; 0: none
    std::uint64_t step_us = 0;      ///< shortest time of a step
    std::uint64_t ballast_mb = 0;   ///< further state per rank, a function of the step, checked when restored
    std::string out;                ///< the final field, written by rank 0
    std::string phase_dir;          ///< $HEAT_PHASE_DIR; empty: publish nothing
    bool hang_on_peer_loss = false;  ///< wait for ever, as a collective without a watchdog does
    bool older_may_live = false;  ///< an older generation's process of this rank, on a node that is cut off
};

/// Reads the command line; ends the program on --help and on a mistake.
Options parse_options(int argc, char **argv);

}  // namespace heat
