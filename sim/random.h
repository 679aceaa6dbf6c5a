// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace dlrover::sim {

/// splitmix64: a whole run follows from one 64-bit seed.
class Random {
  public:
    /// Mixed first: the streams of neighbouring seeds must not overlap.
    explicit Random(std::uint64_t seed) noexcept : state_(seed) { state_ = next() ^ (seed << 32); }
    std::uint64_t next() noexcept {
        std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        return z ^ (z >> 31);
    }
    /// 0 … bound - 1. Precondition: bound > 0.
    std::uint32_t below(std::uint64_t bound) noexcept { return static_cast<std::uint32_t>(next() % bound); }
    /// from … to, both included.
    std::int64_t between(std::int64_t from, std::int64_t to) noexcept {
        return from + static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(to - from + 1));
    }
    bool chance(std::uint32_t percent) noexcept { return below(100) < percent; }

  private:
    std::uint64_t state_;
};

}  // namespace dlrover::sim
