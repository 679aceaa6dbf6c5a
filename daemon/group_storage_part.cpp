// SPDX-License-Identifier: Apache-2.0
// What this node puts on storage for an order of rank 0's node.
#include <algorithm>
#include <utility>

#include "base/fault.h"
#include "daemon/group_storage.h"
#include "daemon/segment_fds.h"
#include "daemon/storage_text.h"

namespace dlrover::daemon {

void GroupStorage::begin_part(NodeIndex home, const FlushWord &order) {
    bool same = part_ && part_->order.order == order.order;
    if (same && part_->order.ranks == order.ranks) {
        if (part_->stored) answer_part();  // the first word was lost
        return;
    }
    bool late = same && order.ranks.empty();  // a word of the first round
    if (late || (part_ && part_->home == home && part_->order.order > order.order)) return;
    fault_point("daemon_flush_received");
    release_part();
    part_ = Part{.home = home, .order = order, .begun = services_.loop.now()};
    take_objects();
    if (part_->objects.empty() && part_->lacks.empty())
        return fail_part(facts_.node + " no longer has its objects of " + step_text(order.id));
    store_next();
}

/// Copies of other nodes' objects are these nodes' to put there, unless they are asked for.
void GroupStorage::take_objects() {
    const FlushWord &order = part_->order;
    auto ranks = order.ranks.empty() ? hooks_.own_ranks(order.world_size) : std::optional(order.ranks);
    for (Rank rank : ranks ? *ranks : services_.arena.holders(order.id)) {
        auto object = services_.arena.begin_read(rank, order.id);
        if (!object.ok()) {
            part_->lacks.push_back(rank);
            continue;
        }
        part_->bytes += object->seal.data_bytes;
        part_->objects.emplace_back(rank, std::move(*object));
    }
    if (!part_->lacks.empty())
        part_->why_lacking = facts_.node + " no longer has what rank " +
                             std::to_string(part_->lacks.front().value()) + " has saved of " +
                             step_text(order.id);
}

void GroupStorage::store_next() {
    if (!part_ || part_->stored) return;
    part_->partly = 0;
    if (part_->objects.empty()) {
        part_->stored = true;
        part_->took = services_.loop.now() - part_->begun;
        trouble_.clear();
        fault_point("daemon_part_stored");
        return answer_part();
    }
    if (!writer_) return;
    auto &[rank, object] = part_->objects.back();
    local::StoreObjectT store;
    store.order = part_->order.order;
    store.checkpoint = describe(part_->order.id, part_->order.world_size);
    store.rank = rank.value();
    auto fds = describe_read_only(object.place.segments, store.segments);
    if (!fds) return fail_part(fds.status().message());
    store.data_bytes = object.seal.data_bytes;
    store.table_offset = object.seal.table_offset;
    store.table_bytes = object.seal.table_bytes;
    store.table_xxh3 = object.seal.table_xxh3;
    store.ledger = object.seal.ledger;
    fault_point("daemon_before_writer_told");
    services_.port.send(*writer_, proto::make_local(0, std::move(store)), std::move(*fds));
    fault_point("daemon_writer_told");
    silence_.set_owed(true);
}

void GroupStorage::on_object_stored(const local::ObjectStoredT &stored) {
    if (!part_ || part_->stored || part_->objects.empty() || stored.order != part_->order.order) return;
    auto &[rank, object] = part_->objects.back();
    if (stored.rank != rank.value()) return;
    if (!stored.ok && stored.memory_damaged) return on_object_damaged(bounded(stored.text));
    if (!stored.ok) return fail_part(bounded(stored.text));
    fault_point("daemon_object_stored");
    services_.arena.end_read(rank, object.place.slot);
    part_->written += object.seal.data_bytes;
    part_->objects.pop_back();
    store_next();
}

/// It is damaged. `text`: what the writer says of it.
void GroupStorage::lack(Rank rank, const Arena::Object &object, const std::string &text) {
    part_->bytes -= object.seal.data_bytes;
    services_.arena.end_read(rank, object.place.slot);
    if (part_->lacks.empty())
        part_->why_lacking = "what rank " + std::to_string(rank.value()) + " has saved of " +
                             step_text(part_->order.id) + " is damaged in the memory of " + facts_.node +
                             (text.empty() ? "" : " (" + text + ")");
    part_->lacks.push_back(rank);
}

/// No fault of storage: the others go there, and another node may have a copy of this one.
void GroupStorage::on_object_damaged(const std::string &text) {
    auto [rank, object] = std::move(part_->objects.back());
    part_->objects.pop_back();
    lack(rank, object, text);
    services_.loop.post([this, alive = alive_, rank = rank, id = part_->order.id, slot = object.place.slot] {
        if (*alive) hooks_.damaged(rank, id, slot);
    });
    store_next();
}

/// The writer is a process of the user: more than there is, or less than before, is not believed.
void GroupStorage::on_progress(const local::ObjectProgressT &progress) {
    if (!part_ || part_->stored || part_->objects.empty() || progress.order != part_->order.order) return;
    const auto &[rank, object] = part_->objects.back();
    if (progress.rank != rank.value() || progress.bytes > object.seal.data_bytes) return;
    part_->partly = std::max(part_->partly, progress.bytes);
}

std::unique_ptr<local::StorageProgressT> GroupStorage::progress() const {
    auto out = std::make_unique<local::StorageProgressT>();
    out->node = facts_.node;
    out->checkpoint = describe(part_->order.id, part_->order.world_size);
    out->written_bytes = part_->written + part_->partly;
    out->bytes = part_->bytes;
    out->time_us = (part_->stored ? part_->took : services_.loop.now() - part_->begun).count();
    return out;
}

void GroupStorage::fail_part(const std::string &text) {
    trouble_ = text;
    answer_home(FlushWord::Kind::Trouble, text);
    release_part();
}

/// What was kept for it may be written over again.
void GroupStorage::release_part() {
    if (!part_) return;
    for (const auto &[rank, object] : part_->objects) services_.arena.end_read(rank, object.place.slot);
    if (writer_ && !part_->stored) {
        local::CancelOrderT cancel;
        cancel.order = part_->order.order;
        services_.port.push(*writer_, std::move(cancel));
    }
    part_.reset();
    silence_.set_owed(writer_owes());
}

void GroupStorage::answer_home(FlushWord::Kind kind, const std::string &text) {
    FlushWord answer = part_->order;
    answer.kind = kind;
    answer.text = text;
    answer.lacks = part_->lacks;
    send(part_->home, std::move(answer));
}

void GroupStorage::answer_part() {
    answer_home(part_->lacks.empty() ? FlushWord::Kind::Stored : FlushWord::Kind::Lacks, part_->why_lacking);
}

}  // namespace dlrover::daemon
