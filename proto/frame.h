// SPDX-License-Identifier: Apache-2.0
// Framing of every stream protocol of ours: u32 little-endian length, then that many bytes. See
// docs/protocol-local.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace dlrover::proto {

using Bytes = std::vector<std::uint8_t>;

inline constexpr std::size_t frame_header_bytes = 4;
inline constexpr std::size_t max_frame_bytes = 4u
                                               << 20;  ///< payload; a longer announcement ends the connection
inline constexpr std::size_t max_frame_fds = 64;       ///< descriptors with one frame

/// Header + payload. Precondition: payload.size() <= max_frame_bytes.
Bytes make_frame(std::span<const std::uint8_t> payload);

/// Cuts a stream into payloads. Bounded: never holds more than one frame beyond what was fed last.
class FrameReader {
  public:
    FrameReader() = default;
    /// For a side that is not trusted with more.
    explicit FrameReader(std::size_t limit_bytes) : limit_bytes_(limit_bytes) {}
    /// Adds received bytes. Fails (corrupt) as soon as an announced length is 0 or too large; unusable
    /// afterwards.
    Status feed(std::span<const std::uint8_t> bytes);
    /// Next whole payload, or none yet.
    std::optional<Bytes> next();
    bool has_next() const noexcept { return !ready_.empty(); }
    /// Whether a frame has begun and is not whole: the reader's deadline applies.
    bool mid_frame() const noexcept { return !buffer_.empty(); }

  private:
    std::size_t limit_bytes_ = max_frame_bytes;
    std::vector<std::uint8_t> buffer_;
    std::deque<Bytes> ready_;
};

/// What one recvmsg brought.
struct Received {
    std::size_t bytes = 0;  ///< 0: end of file
    std::vector<UniqueFd> fds;
};

/// recvmsg into `buffer`, taking passed descriptors (close-on-exec). timeout (EAGAIN) when a non-blocking
/// socket has nothing.
Result<Received> receive_with_fds(int socket, std::span<std::uint8_t> buffer);

/// From a unix stream socket whose peer is not trusted: how many bytes; 0: end of file. corrupt: the next
/// ones come with a descriptor, which is neither taken nor closed. timeout as above.
Result<std::size_t> receive_no_fds(int socket, std::span<std::uint8_t> buffer);

/// sendmsg of `bytes` with `fds` attached to the first byte (MSG_NOSIGNAL). Returns how many bytes went out;
/// the descriptors went with the first.
Result<std::size_t> send_with_fds(int socket, std::span<const std::uint8_t> bytes, std::span<const int> fds);

}  // namespace dlrover::proto
