// SPDX-License-Identifier: Apache-2.0
// Objects that are expected from other nodes.
#pragma once

#include <chrono>
#include <map>
#include <memory>

#include "ckpt/mapping.h"
#include "ckpt/object_table.h"
#include "helper/outbox.h"
#include "transport/bulk_server.h"

namespace dlrover::mover {

struct ArrivalOrder {
    helper::Ticket ticket;
    std::uint64_t transfer = 0;
    transport::Key key;
    std::vector<transport::SocketAddress> from;
    std::vector<ckpt::SegmentGrant> segments;
    ckpt::ObjectIdentity who;
    ckpt::ObjectPlace place;
    bool parity = false;  ///< of several objects: no table, but a checksum of the whole
    std::chrono::milliseconds wait{};
};

/// The object lies in `memory` as `place` says, is `who`'s (whatever its lineage, which the daemon knows),
/// and, where `chunks`, each of its chunks has its checksum.
Status verify_object(std::span<const std::byte> memory, const ckpt::ObjectPlace &place,
                     const ckpt::ObjectIdentity &who, bool chunks);

/// Thread: one; answers come from the server's threads.
class Arrivals {
  public:
    static constexpr std::size_t max_orders = 256;

    Arrivals(helper::Outbox &outbox, std::unique_ptr<transport::BulkServer> server, bool verify_chunks)
        : outbox_(outbox), server_(std::move(server)), verify_chunks_(verify_chunks) {}

    std::uint16_t port() const noexcept { return server_->port(); }
    /// From then on the object may be sent; ObjectArrived follows once.
    Status expect(ArrivalOrder order);
    /// Answered, unless it was.
    void cancel(const helper::Ticket &ticket);

  private:
    struct Arrival;
    void drop_answered();

    helper::Outbox &outbox_;
    std::unique_ptr<transport::BulkServer> server_;
    const bool verify_chunks_;
    std::map<std::uint64_t, std::shared_ptr<Arrival>> orders_;  ///< by number
};

}  // namespace dlrover::mover
