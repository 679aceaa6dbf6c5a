// SPDX-License-Identifier: Apache-2.0
// Frames of an authenticated link: a sequence number and a MAC, with a key for each direction. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "proto/frame.h"

namespace dlrover::transport {

inline constexpr std::size_t nonce_bytes = 32, secret_bytes = 32, key_bytes = 32, mac_bytes = 32;
inline constexpr std::size_t sealed_overhead = 8 + mac_bytes;
inline constexpr std::size_t max_body_bytes = proto::max_frame_bytes - sealed_overhead;

/// Wiped at its end.
class Key {
  public:
    Key() = default;
    explicit Key(std::span<const std::uint8_t, key_bytes> bytes);
    Key(const Key &) = default;
    Key &operator=(const Key &) = default;
    ~Key();
    std::span<const std::uint8_t, key_bytes> bytes() const { return bytes_; }

  private:
    std::array<std::uint8_t, key_bytes> bytes_{};
};

struct ChannelKeys {
    Key send, receive;
};

/// Once per process before anything of this folder; fails when libsodium finds no source of randomness.
Status init_crypto();

/// The keys of the side that connected (`connecting`) or accepted: from both secrets and the transcript.
ChannelKeys derive_keys(std::span<const std::uint8_t> connecting_secret,
                        std::span<const std::uint8_t> accepting_secret,
                        std::span<const std::uint8_t> transcript, bool connecting);

class SecureChannel {
  public:
    explicit SecureChannel(ChannelKeys keys) : keys_(std::move(keys)) {}
    /// Payload of a frame: sequence number, MAC, body. Precondition: body.size() <= max_body_bytes.
    proto::Bytes seal(std::span<const std::uint8_t> body);
    /// The body within `payload`. corrupt: altered, replayed or out of order; the link has to end.
    Result<std::span<const std::uint8_t>> open(std::span<const std::uint8_t> payload);

  private:
    ChannelKeys keys_;
    std::uint64_t next_sent_ = 0, next_received_ = 0;
};

}  // namespace dlrover::transport
