// SPDX-License-Identifier: Apache-2.0
#include "daemon/group_verify.h"

#include <algorithm>
#include <utility>

#include "daemon/records.h"
#include "daemon/segment_fds.h"
#include "proto/frame.h"

namespace dlrover::daemon {
namespace {

constexpr std::uint64_t longest_us = 86'400'000'000;
constexpr std::size_t max_text_bytes = 512;

std::uint64_t bytes_of(const Arena::Object &object) {
    return object.seal.data_bytes + object.seal.table_bytes;
}

}  // namespace

GroupVerify::~GroupVerify() {
    *alive_ = false;
}

void GroupVerify::begin(const CheckpointId &id, std::uint32_t world_size, const std::vector<Task> &tasks) {
    stop();
    id_ = id;
    for (const Task &task : tasks)
        if (objects_.size() < max_objects && !objects_.contains(task.rank)) order(task, world_size);
}

/// What can not be ordered is the worker's to look at.
void GroupVerify::order(const Task &task, std::uint32_t world_size) {
    auto object = services_.arena.begin_read(task.rank, id_);
    if (!object) return;
    local::VerifyObjectT message;
    Result<std::vector<SharedFd>> fds = Status(Code::unsupported, "more segments than a message carries");
    if (object->place.segments.size() <= proto::max_frame_fds)
        fds = describe_read_only(object->place.segments, message.segments);
    if (!fds) return services_.arena.end_read(task.rank, object->place.slot);
    message.order = ++last_order_;
    message.checkpoint = std::make_unique<local::StoredCheckpointT>();
    message.checkpoint->generation = to_proto_ptr(id_.generation);
    message.checkpoint->train_step = id_.step.value();
    message.checkpoint->world_size = world_size;
    message.rank = task.rank.value();
    message.data_bytes = object->seal.data_bytes;
    message.table_offset = object->seal.table_offset;
    message.table_bytes = object->seal.table_bytes;
    message.table_xxh3 = object->seal.table_xxh3;
    objects_[task.rank] = {object->place.slot, message.order, bytes_of(*object), task.agent};
    services_.port.send(task.agent, proto::make_local(0, std::move(message)), std::move(*fds));
}

/// An agent that goes on reading reads what nobody believes.
GroupVerify::Objects::iterator GroupVerify::give_up(Objects::iterator object) {
    const auto &[rank, entry] = *object;
    if (!entry.verified) {
        local::CancelOrderT cancel;
        cancel.order = entry.order;
        services_.port.push(entry.agent, std::move(cancel));
        services_.arena.end_read(rank, entry.slot);
    }
    return objects_.erase(object);
}

void GroupVerify::stop() {
    for (auto it = objects_.begin(); it != objects_.end();) it = give_up(it);
    damaged_.clear();
    sums_ = {};
}

bool GroupVerify::take(Rank rank, const CheckpointId &id, const Arena::Object &object) {
    auto it = objects_.find(rank);
    if (it != objects_.end() && !it->second.verified) {
        give_up(it);
        it = objects_.end();
    }
    if (it != objects_.end() && id == id_ && it->second.slot == object.place.slot) return true;
    ++totals_.rank_objects;
    totals_.rank_bytes += bytes_of(object);
    return false;
}

void GroupVerify::forget(Rank rank) {
    if (auto it = objects_.find(rank); it != objects_.end()) give_up(it);
}

std::string GroupVerify::trouble(Rank rank) const {
    auto found = damaged_.find(rank);
    return found == damaged_.end() ? std::string() : found->second;
}

bool GroupVerify::all_verified() const {
    return sums_.objects > 0 &&
           std::ranges::all_of(objects_, [](const auto &entry) { return entry.second.verified; });
}

void GroupVerify::on_answer(ConnectionId agent, const local::ObjectVerifiedT &answer) {
    auto it = std::ranges::find_if(objects_, [&](const auto &entry) {
        return entry.second.order == answer.order && entry.second.agent == agent && !entry.second.verified;
    });
    if (it == objects_.end()) return;
    auto &[rank, object] = *it;
    services_.arena.end_read(rank, object.slot);
    object.verified = true;  // or goes
    if (answer.ok) {
        ++sums_.objects;
        sums_.bytes += object.bytes;
        ++totals_.agent_objects;
        totals_.agent_bytes += object.bytes;
        sums_.longest =
            std::max(sums_.longest, std::chrono::microseconds(std::min(answer.time_us, longest_us)));
        if (hooks_.all_verified && all_verified()) hooks_.all_verified(sums_);
        return;
    }
    if (answer.damaged) {
        damaged_[rank] = "what rank " + std::to_string(rank.value()) + " has saved of step " +
                         std::to_string(id_.step.value()) + " is damaged in this node's memory (" +
                         answer.text.substr(0, max_text_bytes) + ")";
        services_.loop.post([this, alive = alive_, rank = rank, id = id_, slot = object.slot] {
            if (*alive) hooks_.damaged(rank, id, slot);
        });
    }
    objects_.erase(it);
}

void GroupVerify::on_agent_gone(ConnectionId agent) {
    for (auto it = objects_.begin(); it != objects_.end();)
        it = it->second.agent == agent && !it->second.verified ? give_up(it) : std::next(it);
}

}  // namespace dlrover::daemon
