// SPDX-License-Identifier: Apache-2.0
#include "transport/bulk_list.h"

#include <array>
#include <string>

namespace dlrover::transport {

Status write_list(BulkSocket &socket, const BulkSession &session, std::string_view label,
                  std::span<const std::uint8_t> bytes, std::size_t entry_bytes) {
    std::array<std::uint8_t, 4> length;
    for (std::size_t i = 0; i < length.size(); ++i)
        length[i] = static_cast<std::uint8_t>(bytes.size() / entry_bytes >> (8 * i));
    DLROVER_TRY(socket.write(length, bytes));
    return socket.write(session.mac(label, length, bytes));
}

Result<std::vector<std::uint8_t>> read_list(BulkSocket &socket, const BulkSession &session,
                                            std::string_view label, std::size_t entry_bytes,
                                            std::size_t most) {
    std::array<std::uint8_t, 4> length;
    DLROVER_TRY(socket.read(length));
    std::size_t entries = 0;
    for (std::size_t i = 0; i < length.size(); ++i) entries |= std::size_t{length[i]} << (8 * i);
    if (entries > most)
        return Status(Code::corrupt, "a message that is too long (" + std::string(label) + ")");
    std::vector<std::uint8_t> bytes(entries * entry_bytes);
    BulkMac mac;
    DLROVER_TRY(socket.read(bytes));
    DLROVER_TRY(socket.read(mac));
    DLROVER_TRY(session.check(label, length, mac, bytes));
    return bytes;
}

}  // namespace dlrover::transport
