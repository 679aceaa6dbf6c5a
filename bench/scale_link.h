// SPDX-License-Identifier: Apache-2.0
// What one message on a link between two daemons costs its sender and its receiver: envelope, frame, MAC and
// the kernel's TCP socket, as transport/peer_session.cpp has them; for bench/scale.
#pragma once

#include <cstddef>

#include "base/status.h"

namespace dlrover::bench {

/// Microseconds of a processor; by byte: of the message's payload.
struct LinkCost {
    double send_fixed = 0, send_byte = 0, receive_fixed = 0, receive_byte = 0;
    double send(std::size_t bytes) const { return send_fixed + send_byte * static_cast<double>(bytes); }
    double receive(std::size_t bytes) const {
        return receive_fixed + receive_byte * static_cast<double>(bytes);
    }
};

/// Over a TCP connection of this machine's loopback, both ends in this thread: medians.
Result<LinkCost> measure_link();

}  // namespace dlrover::bench
