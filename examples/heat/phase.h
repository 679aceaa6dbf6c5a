// SPDX-License-Identifier: Apache-2.0
// What a rank is doing, for programs that kill it at a chosen moment: one small shared file per rank.
#pragma once

#include <atomic>
#include <compare>
#include <cstdint>
#include <string>

namespace heat {

enum class Phase : std::uint32_t { none, startup, restart, step, copy, seal, finish, done };  // at most 8

/// The file `rank-N`; little-endian, fixed. Written by the rank, `order_*` by the killer.
/// tests/system/heat.py reads the same layout.
struct PhasePage {
    std::atomic<std::uint32_t> magic;           // 0
    std::atomic<std::uint32_t> pid;             // 4, in the rank's own namespace
    std::atomic<std::uint64_t> pid_namespace;   // 8, inode
    std::atomic<std::uint64_t> generation;      // 16, its number
    std::atomic<std::uint32_t> phase;           // 24
    std::atomic<std::uint32_t> incarnation;     // 28, processes that had this rank so far
    std::atomic<std::int64_t> step;             // 32, last completed, -1: none
    std::atomic<std::int64_t> started_us;       // 40, main() of this process, since the epoch
    std::atomic<std::int64_t> connected_us;     // 48, all neighbours are there; 0: not yet
    std::atomic<std::int64_t> first_step_us;    // 56, first step completed by this process; 0: not yet
    std::atomic<std::int64_t> restored_step;    // 64, -1: started from the beginning
    std::atomic<std::uint32_t> order_phase;     // 72, die in this phase ...
    std::atomic<std::uint32_t> order_delay_us;  // 76, ... so long after it began
    std::atomic<std::uint32_t> orders_taken;    // 80
    std::atomic<std::uint32_t> dies_in;         // 84, phase of the armed order; 0: none
    std::atomic<std::uint32_t> kills[8];   // 88, orders that worked, per phase; counted by the next process
    std::atomic<std::int64_t> saved_step;  // 120, last sealed by this rank, or restored; -1: none
    std::atomic<std::uint64_t> term;       // 128, of the generation: a job's next run may number anew
};

/// In the order in which they begin.
struct GenerationId {
    std::uint64_t term = 0, number = 0;
    friend auto operator<=>(const GenerationId &, const GenerationId &) = default;
};

/// Publishes nothing where the folder is empty. Holds a lock on the file, so a second process with the same
/// rank is seen at once; of the same generation only, where an older one may live.
class PhaseFile {
  public:
    PhaseFile(const std::string &folder, std::uint32_t rank, GenerationId generation, bool older_may_live);
    PhaseFile(const PhaseFile &) = delete;
    PhaseFile &operator=(const PhaseFile &) = delete;

    /// A killer's order for this phase arms a timer whose signal is SIGKILL; leaving the phase disarms it.
    void enter(Phase phase);
    void connected(std::int64_t restored_step);
    void completed(std::uint64_t step);
    void saved(std::uint64_t step);

  private:
    void open(const std::string &folder, std::uint32_t rank, bool older_may_live);
    bool lock(int fd, bool older_may_live) const;
    void arm();
    void disarm();

    PhasePage *page_ = nullptr;
    GenerationId generation_;
    bool armed_ = false;
    bool first_ = true;
};

}  // namespace heat
