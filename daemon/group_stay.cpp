// SPDX-License-Identifier: Apache-2.0
// Processes that stay: they leave their generation by themselves, and go on in the next one.
#include <algorithm>
#include <set>

#include "daemon/group.h"
#include "daemon/wall_clock.h"
#include "proto/local_codec.h"

namespace dlrover::daemon {
namespace {

constexpr auto stay_limit = std::chrono::seconds(3);  ///< to leave one's generation
/// Who is refused because of another connection asks again within a quarter of a second.
constexpr auto still_asks = std::chrono::seconds(1);
constexpr int exit_status_1 = 1 << 8;

std::size_t bytes_of(const std::vector<std::string> &variables) {
    std::size_t sum = 0;
    for (const std::string &variable : variables) sum += variable.size() + sizeof variable;
    return sum;
}

}  // namespace

void Group::on_leave(const Client &from, std::uint32_t id, const local::LeaveGenerationT &leave) {
    auto refuse = [&](local::Refusal code, const std::string &text) {
        services_.port.fail(from.id, id, code, text);
    };
    GenerationId left = from_proto(leave.generation);
    auto rank = rank_of(leave.local_rank);
    if (over()) return refuse(local::Refusal::Stale, "the group is over");
    if (workers_.contains(from.id) || stayers_.contains(from.id))
        return refuse(local::Refusal::BadMessage, "only the first message of a connection can be this");
    if (!world_ || left > world_->id)
        return refuse(local::Refusal::NotReady, "generation " + to_string(left) + " is not known here");
    if (leave.local_rank >= std::uint32_t{record_.workers} * tasks_here())
        return refuse(local::Refusal::BadMessage,
                      "this node has no local rank " + std::to_string(leave.local_rank));
    if (left == world_->id && rank && left > stopping_) fail_if_nobody_stops(left, leave.local_rank);
    bool open = std::ranges::any_of(workers_, [&](const auto &entry) {
        return entry.second.local_rank == leave.local_rank && entry.second.generation == left;
    });
    // Its end may be read after this.
    if (open) return refuse(local::Refusal::NotReady, "this rank has another connection, which is open");
    stayers_[from.id] = {id, leave.local_rank, left};
    if (left == world_->id && rank) rank_states_[*rank] = "waiting";
    auto known = stayed_.find(leave.local_rank);
    if (known != stayed_.end() && known->second.first > left)
        return on_stayed(leave.local_rank, known->second.first, known->second.second);
    note_left();
}

/// Whether none of its processes has to be ended for the next generation.
bool Group::all_stay(const Agent &agent) const {
    if (agent.leaving != GenerationId{}) return true;  // they were told so already
    std::set<std::uint32_t> staying = left_of(agent, agent.running);
    for (const auto &[connection, worker] : workers_)
        if (worker.stays && worker.generation == agent.running && is_local_rank_of(agent, worker.local_rank))
            staying.insert(worker.local_rank);
    return staying.size() == record_.workers;
}

/// Local ranks of its processes that have left this generation and wait.
std::set<std::uint32_t> Group::left_of(const Agent &agent, const GenerationId &generation) const {
    std::set<std::uint32_t> left;
    for (const auto &[connection, stayer] : stayers_)
        if (stayer.left == generation && is_local_rank_of(agent, stayer.local_rank))
            left.insert(stayer.local_rank);
    return left;
}

/// Also where this daemon was away when its end was said.
bool Group::is_past(const GenerationId &generation) const {
    return generation <= stopping_ || (world_ && world_->id > generation);
}

/// An agent all of whose processes have left has nothing to end, and hears of the next world.
void Group::note_left() {
    bool any = false;
    for (auto &[task, agent] : agents_) {
        if (agent.leaving == GenerationId{} || !is_past(agent.leaving)) continue;
        if (left_of(agent, agent.leaving).size() < record_.workers) continue;
        agent.stopped = std::max({agent.stopped, stopping_, agent.leaving});
        agent.running = agent.leaving = {};
        any = true;
        if (world_ && world_->id > stopping_) push_world(agent);
    }
    if (!any) return;
    rest_stayers();
    report_readiness_soon();
    services_.loop.post([this, alive = alive_] {
        if (*alive) report_stopped();
    });
}

/// Who leaves while all others go on has failed: by then a lost leader has been followed by another, and what
/// this rank has noticed is known.
void Group::fail_if_nobody_stops(const GenerationId &generation, std::uint32_t local_rank) {
    if (alone_timer_ && alone_.generation != generation) alone_timer_.reset();
    if (!alone_timer_) alone_ = {generation, {}};
    auto now = services_.loop.now();
    auto [it, is_new] = alone_.asked.try_emplace(local_rank, Alone::Asked{now, now});
    if (!is_new && !is_there(local_rank, it->second)) it->second.first = now;
    it->second.last = now;
    if (!alone_timer_) alone_timer_ = services_.loop.after(alone_limit(), [this] { fail_who_left_alone(); });
}

EventLoop::Time Group::alone_limit() const {
    const elastic::Timings timing = config().timings;
    return timing.leader_silence + timing.election + timing.agent_lease;
}

/// Not one that is no longer there: whoever it was, the rank has gone on, or its end is told by its agent.
bool Group::is_there(std::uint32_t local_rank, const Alone::Asked &asked) const {
    if (services_.loop.now() - asked.last <= still_asks) return true;
    return std::ranges::any_of(stayers_, [&](const auto &entry) {
        return entry.second.local_rank == local_rank && entry.second.left == alone_.generation;
    });
}

/// The one that has waited longest, once that is long enough; what came in between was somebody else's.
void Group::fail_who_left_alone() {
    alone_timer_.reset();
    GenerationId generation = alone_.generation;
    if (!world_ || world_->id != generation || generation <= stopping_ || over()) return;
    std::erase_if(alone_.asked, [&](const auto &asked) { return !is_there(asked.first, asked.second); });
    if (alone_.asked.empty()) return;
    auto who =
        std::ranges::min_element(alone_.asked, {}, [](const auto &asked) { return asked.second.first; });
    auto left = alone_limit() - (services_.loop.now() - who->second.first);
    if (left > left.zero()) {
        alone_timer_ = services_.loop.after(left, [this] { fail_who_left_alone(); });
        return;
    }
    auto rank = rank_of(who->first);
    if (!rank) return;
    std::string text = "Rank " + std::to_string(rank->value()) +
                       " has left the generation, which nobody else did: it is counted as failed";
    add_event(proto::EventKind::Warning, text + ".", generation, static_cast<std::int32_t>(rank->value()));
    elastic::WorkerExit exit;
    exit.generation = generation;
    exit.rank = *rank;
    exit.wait_status = exit_status_1;
    exit.wall_time_us = wall_clock_us();
    // Never "the same failure" as another.
    exit.signature = static_cast<std::uint64_t>(exit.wall_time_us);
    exit.error_text = std::move(text);
    feed_when_ready(elastic::LocalExit{std::move(exit)});
}

void Group::on_stayed(std::uint32_t local_rank, const GenerationId &generation,
                      const std::vector<std::string> &variables) {
    bool fits = bytes_of(variables) <= proto::max_next_world_bytes;
    if (fits) stayed_[local_rank] = {generation, variables};
    std::vector<std::pair<ConnectionId, std::uint32_t>> waiting;
    std::erase_if(stayers_, [&](const auto &entry) {
        bool his = entry.second.local_rank == local_rank && entry.second.left < generation;
        if (his) waiting.emplace_back(entry.first, entry.second.request);
        return his;
    });
    for (const auto &[connection, request] : waiting) {
        local::NextWorldT next;
        next.variables = variables;
        if (fits)
            services_.port.answer(connection, request, std::move(next));
        else
            services_.port.fail(connection, request, local::Refusal::Internal,
                                "the variables of the next generation are longer than 32 KiB");
    }
}

void Group::await_stayers() {
    if (!stay_timer_) stay_timer_ = services_.loop.after(stay_limit, [this] { stop_stayers(); });
}

/// Nobody is waited for any more: the next time counts from its own beginning.
void Group::rest_stayers() {
    bool waits = std::ranges::any_of(
        agents_, [](const auto &entry) { return entry.second.leaving != GenerationId{}; });
    if (!waits) stay_timer_.reset();
}

/// Who has not left in time is ended.
void Group::stop_stayers() {
    stay_timer_.reset();
    for (auto &[task, agent] : agents_) {
        if (agent.leaving == GenerationId{}) continue;
        if (!is_past(agent.leaving)) {  // the group has not said yet that it ends
            await_stayers();
            continue;
        }
        stopping_ = std::max(stopping_, agent.leaving);
        push_stop(agent, "it did not leave its generation in time", false);
        if (world_ && world_->id > stopping_) push_world(agent);
        report_readiness_soon();
    }
}

void Group::end_stayers() {
    stayed_.clear();
    for (const auto &[connection, stayer] : std::exchange(stayers_, {}))
        services_.port.fail(connection, stayer.request, local::Refusal::Stale, "the group is over");
}

}  // namespace dlrover::daemon
