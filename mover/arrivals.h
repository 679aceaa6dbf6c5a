// SPDX-License-Identifier: Apache-2.0
// Objects that are expected from other nodes.
#pragma once

#include <chrono>
#include <map>
#include <memory>

#include "ckpt/mapping.h"
#include "ckpt/object_check.h"
#include "helper/outbox.h"
#include "transport/bulk_server.h"

namespace dlrover::mover {

/// An object that is in this node's memory, and stays until the order is answered.
struct OwnObject {
    std::vector<ckpt::SegmentGrant> segments;
    ckpt::KnownObject object;
};

struct ArrivalOrder {
    helper::Ticket ticket;
    std::uint64_t transfer = 0;
    transport::Key key;
    std::vector<transport::SocketAddress> from;
    std::vector<ckpt::SegmentGrant> segments;
    ckpt::KnownObject object;
    std::vector<OwnObject> own;  ///< what they have of it is not sent
    bool chunks_only = false;    ///< what lies between chunks, to align them, does not count
    std::chrono::milliseconds wait{};
};

/// Thread: one; answers come from the server's threads.
class Arrivals {
  public:
    static constexpr std::size_t max_orders = 256;

    Arrivals(helper::Outbox &outbox, std::unique_ptr<transport::BulkServer> server)
        : outbox_(outbox), server_(std::move(server)) {}
    ~Arrivals();
    Arrivals(const Arrivals &) = delete;
    Arrivals &operator=(const Arrivals &) = delete;

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
    std::map<std::uint64_t, std::shared_ptr<Arrival>> orders_;  ///< by number
};

}  // namespace dlrover::mover
