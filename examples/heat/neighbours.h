// SPDX-License-Identifier: Apache-2.0
// TCP between the ranks: rank 0 serves a small meeting point at MASTER_ADDR:MASTER_PORT, then each rank talks
// to the ranks above and below it. A lost peer ends the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "examples/heat/plate.h"

namespace heat {

/// Who takes part; generations never mix.
struct Party {
    std::uint32_t rank = 0, ranks = 1;
    std::uint64_t term = 0, generation = 0;
};

class Neighbours {
  public:
    /// Returns when every rank of the generation has come and both neighbours are connected (at most 60 s).
    Neighbours(const Party &party, bool hang_on_loss);
    ~Neighbours();
    Neighbours(const Neighbours &) = delete;
    Neighbours &operator=(const Neighbours &) = delete;

    /// Edge rows to the neighbours, theirs into the halo rows.
    void exchange(Plate &plate);
    /// The whole field at rank 0, in row order; empty elsewhere.
    std::vector<double> gather(const Plate &plate);
    /// Everybody waits for rank 0 to come here.
    void wait_for_root();

  private:
    void serve(std::uint16_t own_port);
    void meet(std::uint16_t own_port);
    void send(int fd, const void *data, std::size_t bytes);
    void receive(int fd, void *data, std::size_t bytes);
    [[noreturn]] void lost(const char *what);

    Party party_;
    bool hang_on_loss_;
    int up_ = -1, down_ = -1;       ///< towards rank - 1, rank + 1
    std::vector<int> control_;      ///< rank 0: one per other rank; others: one, to rank 0
    std::uint32_t up_address_ = 0;  ///< IPv4, network order
    std::uint16_t up_port_ = 0;
};

}  // namespace heat
