// SPDX-License-Identifier: Apache-2.0
// One end of the keeper protocol (proto/keeper.fbs): a message with at most one descriptor per packet.
#pragma once

#include <optional>

#include "base/status.h"
#include "base/unique_fd.h"
#include "keeper_types.h"

namespace dlrover::daemon {

namespace keeper = proto::keeper;

inline constexpr std::size_t max_keeper_packet_bytes = 192u << 10;

struct KeeperMessage {
    keeper::MessageT message;
    UniqueFd fd;
};

template <typename BodyT>
keeper::MessageT make_keeper(std::uint32_t id, BodyT body) {
    keeper::MessageT message;
    message.id = id;
    message.body.Set(std::move(body));
    return message;
}

/// resource_exhausted: larger than a packet. timeout: the socket's queue is full (non-blocking socket, or
/// after SO_SNDTIMEO). unavailable: the other side is gone.
Status send_keeper(int socket, const keeper::MessageT &message, int fd = -1);
/// timeout: nothing there (non-blocking, or after SO_RCVTIMEO). unavailable: the other side is gone.
Result<KeeperMessage> receive_keeper(int socket);

}  // namespace dlrover::daemon
