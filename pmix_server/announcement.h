// SPDX-License-Identifier: Apache-2.0
// An event that a rank sends to ranks of other nodes <-> bytes (proto/pmix.fbs). Pure.
#pragma once

#include "pmix_server/courier.h"

namespace dlrover::pmix {

struct Announcement {
    std::int32_t code = 0;
    std::uint32_t rank = 0;  ///< who sends it
    bool custom = false;     ///< `infos` say who gets it; else all ranks
    std::uint32_t count = 0;
    proto::Bytes infos;  ///< so many, as PMIx packs them
};
inline constexpr std::size_t max_info_bytes = std::size_t{64} << 10;
inline constexpr std::uint32_t max_infos = 256;

proto::Bytes encode_announcement(const Announcement &announcement);
/// corrupt: the bytes do not verify, or a value is out of range.
Result<Announcement> decode_announcement(std::span<const std::uint8_t> bytes);

/// What ranks of one node may send: nobody waits for events to arrive, and queues are everybody's.
class EventAllowance {
  public:
    static constexpr std::uint64_t bytes_per_second = std::uint64_t{1} << 20, most = 4 * bytes_per_second;
    static constexpr std::size_t around_event_bytes = 512;

    /// false: too much.
    bool take(Time now, std::size_t bytes);

  private:
    std::uint64_t left_ = most;
    Time at_{0};
};

}  // namespace dlrover::pmix
