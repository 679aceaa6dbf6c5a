// SPDX-License-Identifier: Apache-2.0
// Sends memory to another node's BulkServer.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <span>

#include "base/status.h"
#include "transport/bulk_socket.h"
#include "transport/bulk_wire.h"
#include "transport/rate_limit.h"
#include "transport/sockets.h"

namespace dlrover::transport {

struct BulkJob {
    SocketAddress to;
    std::string from;  ///< numeric address of this node to send from; empty: the system's choice
    std::uint64_t transfer = 0;
    Key key;
    std::span<const std::byte> memory;  ///< as many bytes as the other side expects
    BulkMethod method = BulkMethod::tcp;
    std::uint16_t streams = 2;  ///< connections at once; with ucx always one
    std::uint64_t begin =
        0;  ///< what the other side wants first: blocks go from here to the end, then from the start
    std::shared_ptr<RateLimit> rate;  ///< shared with other jobs; none: as fast as it goes
    std::chrono::milliseconds stall{5000};
    std::optional<WaitLimits::Time> deadline;
    std::shared_ptr<Cancellation> cancellation;  ///< none: it can not be called off
    BulkHash hash = bulk_hash;
    /// Of what the other side has already: the blocks that need not be sent, in order. None: all are sent.
    std::function<std::vector<BulkSpared>(std::span<const BulkHave> haves)> spare;
    std::atomic<std::uint64_t> *progress = nullptr; /**< bytes that have been handed to the network */
};

/// Blocks until the other side has all of it and has verified it. unavailable, timeout: it may be tried
/// again, as another transfer with another key. Else what the other side says of the bytes.
Status bulk_send(const BulkJob &job);

}  // namespace dlrover::transport
