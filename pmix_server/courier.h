// SPDX-License-Identifier: Apache-2.0
// Messages from node to node, over links that lose some: each arrives once, in order, as long as both live
// and are of the same generation. Pure: time and parcels in, parcels and messages out.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "pmix_server/parcel.h"

namespace dlrover::pmix {

using Time = std::chrono::microseconds;  ///< CLOCK_MONOTONIC

/// Of one generation.
class Courier {
  public:
    /// Encoded; one for all who get it.
    using Letter = std::shared_ptr<const proto::Bytes>;
    struct Hooks {
        std::function<void(std::uint32_t to, const Parcel &parcel)> send;
        std::function<void(std::uint32_t from, std::span<const std::uint8_t> message)> arrived;
    };
    static constexpr std::size_t window_bytes = std::size_t{512} << 10;  ///< under way to one place at once
    static constexpr std::size_t max_queued_bytes = std::size_t{32} << 20;
    static constexpr Time first_patience{250000}, longest_patience{8000000};

    explicit Courier(Hooks hooks) : hooks_(std::move(hooks)) {}

    /// resource_exhausted: that place does not take what was sent before.
    Status send(Time now, std::uint32_t to, Letter letter);
    void receive(Time now, std::uint32_t from, const Parcel &parcel);
    /// Says how far this side is: with each piece, and where it begins while others may have begun before.
    void greet(std::uint32_t to);
    /// Sends again what was not acknowledged in time.
    void tick(Time now);
    /// When tick() has something to do; Time::max(): nothing is under way.
    Time next_tick() const;

  private:
    struct Position {
        std::uint64_t message = 0;
        std::uint32_t at = 0;
        friend auto operator<=>(const Position &, const Position &) = default;
    };
    struct Outgoing {
        std::deque<Letter> letters;  ///< the first is number `acknowledged.message`
        Position acknowledged, sent;
        std::optional<Position> sent_again;  ///< what is before it may come twice, and be answered twice
        std::size_t queued_bytes = 0;
        Time due = Time::max(), patience = first_patience;
    };
    struct Incoming {
        std::uint64_t message = 0;
        proto::Bytes bytes;  ///< of that message, so far
    };
    void advance(Time now, std::uint32_t to, Outgoing &out);
    void on_nothing_new(Time now, std::uint32_t to, Outgoing &out);
    void send_again(Time now, std::uint32_t to, Outgoing &out);
    void on_piece(std::uint32_t from, const Parcel &piece);
    void on_received(Time now, std::uint32_t from, const Parcel &parcel);
    static std::size_t bytes_under_way(const Outgoing &out);

    Hooks hooks_;
    std::map<std::uint32_t, Outgoing> outgoing_;
    std::map<std::uint32_t, Incoming> incoming_;
};

}  // namespace dlrover::pmix
