// SPDX-License-Identifier: Apache-2.0
// The memory of a group's checkpoints: what its users are told, and the job's part in it.
#include <algorithm>
#include <utility>

#include "daemon/group.h"

namespace dlrover::daemon {

/// What a user should know about memory, once each.
void Group::tell_memory(const Worker &worker, const Status &status) {
    auto rank = static_cast<std::int32_t>(worker.rank.value());
    if (status.code() == Code::resource_exhausted) {
        bool first = memory_refused_.empty();
        memory_refused_[worker.rank] = status.message();
        if (first)
            add_event(proto::EventKind::Warning, "Memory was refused: " + status.message(), worker.generation,
                      rank);
        return;
    }
    if (!status.ok()) return;
    memory_refused_.erase(worker.rank);
    std::uint32_t slots = arena_.memory().slots;
    if (slots >= services_.settings.memory.slots || std::exchange(few_slots_told_, true)) return;
    add_event(proto::EventKind::Warning,
              std::string("Memory is short: ") +
                  (has_copies() ? "with what it keeps for other nodes, " : "") + "ranks here keep " +
                  std::to_string(slots) + " checkpoints instead of " +
                  std::to_string(services_.settings.memory.slots) + ", saves may be skipped more often.",
              worker.generation, rank);
}

/// The one that runs it; any other of the step is as good for the kernel's books.
const Group::Agent *Group::agent_of_rank(Rank rank) const {
    for (std::uint32_t i = 0; world_ && i < ranks_of(self()); ++i) {
        if (rank_of(i) != rank) continue;
        auto agent = agents_.find(static_cast<std::uint16_t>(i / record_.workers));
        if (agent != agents_.end()) return &agent->second;
    }
    return agents_.empty() ? nullptr : &agents_.begin()->second;
}

std::optional<JobMemory::Allowance> Group::allowance(Rank rank) const {
    const Agent *agent = agent_of_rank(rank);
    return agent ? allowance_of(*agent) : std::nullopt;
}

std::optional<JobMemory::Allowance> Group::allowance_of(const Agent &agent) const {
    auto cgroup = agent.pid > 0 ? ckpt::cgroup_memory(std::to_string(agent.pid)) : std::nullopt;
    if (!cgroup) return std::nullopt;
    std::uint64_t floor = services_.settings.memory.available_floor.of(cgroup->limit_bytes);
    return Allowance{std::move(*cgroup), floor};
}

void Group::fill(Rank rank, const ArenaSegment &segment) {
    if (const Agent *agent = agent_of_rank(rank)) push_fill(*agent, segment);
}

void Group::push_fill(const Agent &agent, const ArenaSegment &segment) {
    local::FillSegmentT order;
    order.id = segment.id.value();
    order.bytes = segment.bytes;
    order.floor_bytes = services_.budget.floor_bytes();
    if (auto allowed = allowance_of(agent)) order.job_floor_bytes = allowed->floor_bytes;
    services_.port.send(agent.connection, proto::make_local(0, std::move(order)), {segment.fd});
}

void Group::push_unfilled(const Agent &agent) {
    if (!record_.charge_job) return;
    for (const auto &[rank, segment] : arena_.unfilled())
        if (agent_of_rank(rank) == &agent) push_fill(agent, segment);
}

void Group::on_segment_filled(const local::SegmentFilledT &filled) {
    if (!record_.charge_job) return;  // nobody has asked for it: the daemon fills them itself
    constexpr std::uint64_t longest_us = 86'400'000'000;
    constexpr std::size_t longest_text = 512;
    Status status;
    if (!filled.text.empty())
        status = Status(filled.no_room ? Code::resource_exhausted : Code::system,
                        filled.text.substr(0, longest_text));
    arena_.filled(SegmentId(filled.id), std::chrono::microseconds(std::min(filled.busy_us, longest_us)),
                  std::move(status));
}

}  // namespace dlrover::daemon
