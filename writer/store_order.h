// SPDX-License-Identifier: Apache-2.0
// One rank's sealed object on its way to storage.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "ckpt/mapping.h"
#include "ckpt/object_table.h"
#include "ckpt/storage_frame.h"
#include "helper/outbox.h"
#include "writer/destination.h"
#include "writer/line.h"

namespace dlrover::writer {

using helper::Ticket;

struct StoreOrder {
    Ticket ticket;
    std::shared_ptr<const Line> line;
    std::shared_ptr<std::atomic<bool>> cancelled = std::make_shared<std::atomic<bool>>(false);
    Destination to;
    Checkpoint checkpoint;
    Rank rank;
    std::vector<ckpt::SegmentGrant> segments;
    ckpt::ObjectPlace place;
    std::vector<std::uint8_t> ledger;
    bool memory_damaged =
        false;  ///< store_object() has failed, since the object does not match its checksums
};

/// invalid_argument: an order that can not be meant.
Result<StoreOrder> make_store_order(Ticket ticket, std::shared_ptr<const Line> line, const Destination &to,
                                    const proto::local::StoreObjectT &message, std::vector<UniqueFd> fds);

/// Takes the order's segments. The object is in its file when this returns its length; otherwise no file has
/// its name but one from before. A whole file of the same object is left alone. Trusts nothing of the order,
/// but that the memory stays as it is while the daemon is there and the order not cancelled. `frames`: of
/// objects before. `watch`: told of data bytes as storage takes them, by several threads. Blocks.
Result<std::uint64_t> store_object(StoreOrder &order, ckpt::StorageFrames &frames,
                                   std::function<void(std::uint64_t bytes)> watch);

}  // namespace dlrover::writer
