// SPDX-License-Identifier: Apache-2.0
#include "mover/arrivals.h"

#include <atomic>

#include "ckpt/checksum.h"

namespace dlrover::mover {

using Clock = std::chrono::steady_clock;

Status verify_object(std::span<const std::byte> memory, const ckpt::ObjectPlace &place,
                     const ckpt::ObjectIdentity &who, bool chunks) {
    auto bytes = ckpt::find_object_table(memory, place);
    if (!bytes) return bytes.take_status();
    auto table = ckpt::ObjectTableView::parse(*bytes, place.data_bytes);
    if (!table) return table.take_status();
    ckpt::ObjectIdentity wanted = who;
    wanted.lineage = table->identity().lineage;
    DLROVER_TRY(ckpt::check_identity(wanted, table->identity()).with_context("another object arrived"));
    for (std::uint64_t i = 0; chunks && i < table->count(); ++i) {
        ckpt::ChunkInfo chunk = table->chunk(i);
        if (chunk.keeper) continue;  // another rank's object has its bytes
        if (ckpt::chunk_checksum(memory.subspan(chunk.offset, chunk.bytes)) != chunk.checksum)
            return Status(Code::corrupt, "chunk \"" + std::string(chunk.name.substr(0, 200)) +
                                             "\" arrived without its checksum");
    }
    return {};
}

namespace {

/// A part of a code: its bytes say nothing by themselves.
Status verify_parity(std::span<const std::byte> memory, const ckpt::ObjectPlace &place) {
    if (memory.size() == place.data_bytes && ckpt::chunk_checksum(memory) == place.table_xxh3) return {};
    return Status(Code::corrupt, "a parity arrived without its checksum");
}

}  // namespace

struct Arrivals::Arrival {
    Arrival(ArrivalOrder o, ckpt::SegmentRange r) : order(std::move(o)), range(std::move(r)) {}
    ArrivalOrder order;
    ckpt::SegmentRange range;
    Clock::time_point start = Clock::now();
    std::atomic<bool> answered{false};

    void answer(helper::Outbox &outbox, const Status &status) {
        if (answered.exchange(true)) return;
        proto::local::ObjectArrivedT answer;
        answer.ok = status.ok();
        answer.text = status.message();
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
    std::uint64_t end = order.place.table_offset + order.place.table_bytes;
    if (end < order.place.table_offset || end > range->bytes())
        return Status(Code::invalid_argument, "the object is longer than its memory");
    auto arrival = std::make_shared<Arrival>(std::move(order), std::move(*range));
    transport::BulkTarget target;
    target.transfer = arrival->order.transfer;
    target.key = arrival->order.key;
    target.from = arrival->order.from;
    target.memory = {arrival->range.base(), end};
    target.deadline = Clock::now() + arrival->order.wait;
    target.verify = [arrival, chunks = verify_chunks_, end] {
        std::span<const std::byte> memory(arrival->range.base(), end);
        const ArrivalOrder &what = arrival->order;
        return what.parity ? verify_parity(memory, what.place)
                           : verify_object(memory, what.place, what.who, chunks);
    };
    target.done = [arrival, &outbox = outbox_](const Status &status) { arrival->answer(outbox, status); };
    DLROVER_TRY(server_->expect(std::move(target)));
    orders_[arrival->order.ticket.order] = std::move(arrival);
    return {};
}

void Arrivals::cancel(const helper::Ticket &ticket) {
    auto it = orders_.find(ticket.order);
    if (it == orders_.end() || it->second->order.ticket != ticket) return;
    server_->forget(it->second->order.transfer);
    it->second->answer(outbox_, Status(Code::stale, "the order was cancelled"));
    orders_.erase(it);
}

void Arrivals::drop_answered() {
    std::erase_if(orders_, [](const auto &entry) { return entry.second->answered.load(); });
}

}  // namespace dlrover::mover
