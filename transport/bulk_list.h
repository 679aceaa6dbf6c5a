// SPDX-License-Identifier: Apache-2.0
// Messages of a bulk connection whose length is only known when they come: length (u32, in entries), entries,
// MAC.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "transport/bulk_socket.h"
#include "transport/bulk_wire.h"

namespace dlrover::transport {

/// `bytes`: a whole number of entries of `entry_bytes`.
Status write_list(BulkSocket &socket, const BulkSession &session, std::string_view label,
                  std::span<const std::uint8_t> bytes, std::size_t entry_bytes);
/// corrupt: more than `most` entries.
Result<std::vector<std::uint8_t>> read_list(BulkSocket &socket, const BulkSession &session,
                                            std::string_view label, std::size_t entry_bytes,
                                            std::size_t most);

}  // namespace dlrover::transport
