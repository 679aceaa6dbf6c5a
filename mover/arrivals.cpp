// SPDX-License-Identifier: Apache-2.0
#include "mover/arrivals.h"

#include <atomic>
#include <optional>

#include "mover/here_already.h"
#include "mover/object_watch.h"

namespace dlrover::mover {

using Clock = std::chrono::steady_clock;

struct Arrivals::Arrival {
    Arrival(ArrivalOrder o, ckpt::SegmentRange r) : order(std::move(o)), range(std::move(r)) {}
    ArrivalOrder order;
    ckpt::SegmentRange range;
    std::vector<ckpt::SegmentRange> own;
    HereAlready here;
    std::optional<ObjectWatch> watch;
    std::uint64_t spared_bytes = 0;  ///< before `done`
    Clock::time_point start = Clock::now();
    std::atomic<bool> answered{false}, cancelled{false};

    /// What can not be looked at is sent.
    void look_at_own() {
        for (OwnObject &one : order.own) {
            auto mapped = ckpt::SegmentRange::map(std::move(one.segments), ckpt::Access::read_only,
                                                  ckpt::PageTables::later);
            if (!mapped) continue;
            here.add({mapped->base(), mapped->bytes()}, one.object);
            own.push_back(std::move(*mapped));
        }
    }

    Status fill(std::span<const transport::BulkSpared> spared, std::uint64_t end) {
        for (const auto &run : spared) spared_bytes += run.count * transport::bulk_block_bytes;
        return here.fill({range.base(), end}, order.object.place, spared, &cancelled);
    }

    void answer(helper::Outbox &outbox, const Status &status) {
        if (answered.exchange(true)) return;
        here = {};
        own.clear();
        proto::local::ObjectArrivedT answer;
        answer.ok = status.ok();
        answer.text = status.message();
        answer.spared_bytes = spared_bytes;
        answer.time_us = static_cast<std::uint64_t>((Clock::now() - start) / std::chrono::microseconds(1));
        outbox.put(order.ticket, std::move(answer));
    }
};

Status Arrivals::expect(ArrivalOrder order) {
    drop_answered();
    if (orders_.size() >= max_orders)
        return Status(Code::resource_exhausted, "the mover has too many orders already");
    auto range = ckpt::SegmentRange::map(std::move(order.segments), ckpt::Access::read_write);
    if (!range) return range.take_status();
    const ckpt::ObjectPlace &place = order.object.place;
    std::uint64_t end = place.table_offset + place.table_bytes;
    if (end < place.table_offset || end > range->bytes())
        return Status(Code::invalid_argument, "the object is longer than its memory");
    auto arrival = std::make_shared<Arrival>(std::move(order), std::move(*range));
    arrival->look_at_own();
    transport::BulkTarget target;
    target.transfer = arrival->order.transfer;
    target.key = arrival->order.key;
    target.from = arrival->order.from;
    target.memory = {arrival->range.base(), end};
    target.deadline = Clock::now() + arrival->order.wait;
    arrival->watch.emplace(std::span<const std::byte>(arrival->range.base(), end), arrival->order.object);
    target.arrived = [arrival](std::uint16_t stream, std::uint64_t offset, std::uint64_t bytes) {
        arrival->watch->arrived(stream, offset, bytes);
    };
    target.compared = arrival->order.chunks_only || arrival->order.object.parity;
    target.haves = arrival->here.list();
    target.fill = [arrival, end](std::span<const transport::BulkSpared> spared) {
        return arrival->fill(spared, end);
    };
    // However the bytes came: what was damaged before it was sent must not become a copy.
    target.verify = [arrival] { return arrival->watch->verify(&arrival->cancelled); };
    target.done = [arrival, &outbox = outbox_](const Status &status) { arrival->answer(outbox, status); };
    DLROVER_TRY(server_->expect(std::move(target)));
    orders_[arrival->order.ticket.order] = std::move(arrival);
    return {};
}

void Arrivals::cancel(const helper::Ticket &ticket) {
    auto it = orders_.find(ticket.order);
    if (it == orders_.end() || it->second->order.ticket != ticket) return;
    it->second->cancelled = true;  // or forget() waits until every byte is compared
    server_->forget(it->second->order.transfer);
    it->second->answer(outbox_, Status(Code::stale, "the order was cancelled"));
    orders_.erase(it);
}

Arrivals::~Arrivals() {
    for (auto &[number, arrival] : orders_) arrival->cancelled = true;
    server_.reset();  // waits for its threads
}

void Arrivals::drop_answered() {
    std::erase_if(orders_, [](const auto &entry) { return entry.second->answered.load(); });
}

}  // namespace dlrover::mover
