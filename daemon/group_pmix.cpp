// SPDX-License-Identifier: Apache-2.0
// A group whose ranks speak PMIx: what PmixRelay and the rest of the group say to each other.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <csignal>
#include <functional>

#include "base/process_tree.h"
#include "common/log.h"
#include "daemon/group.h"
#include "daemon/summary.h"
#include "daemon/wall_clock.h"

namespace dlrover::daemon {
namespace {

constexpr int exit_cannot_run = 71;  // EX_OSERR, as agents say it
constexpr std::uint64_t no_server_signature = 0x706d6978;
constexpr std::uint64_t missing_signature = 0x706d6979;
constexpr std::size_t max_purpose_bytes = 64;
constexpr auto abort_patience = std::chrono::seconds(2);  ///< for a rank that aborts to end by itself

/// As the rank would have ended with it.
std::int32_t abort_wait_status(std::int32_t status) {
    std::int32_t code = status & 0xff;
    return (code == 0 ? 1 : code) << 8;
}

/// The same for "the same failure".
std::uint64_t abort_signature(std::int32_t status, const std::string &text) {
    return XXH3_64bits_withSeed(text.data(), text.size(), static_cast<std::uint32_t>(status));
}

}  // namespace

void Group::create_pmix() {
    auto mode = registration().options->pmix;
    if (pmix_ || mode == proto::PmixMode::No) return;
    PmixRelay::Hooks hooks;
    hooks.send = [this](PmixRelay::Place place, proto::Bytes word) {
        const std::string node = node_name(world_->nodes[place]);
        constexpr auto kind = transport::PeerEnvelope::Kind::pmix;
        if (!services_.peers.takes(node, kind)) return false;
        send_envelope(node, kind, std::move(word));
        return true;
    };
    hooks.ready = [this] {
        if (!world_ || world_->id <= stopping_ || over()) return;
        for (auto &[task, agent] : agents_) push_world(agent);
        report_readiness_soon();
    };
    hooks.failed = [this](const std::string &why) { on_pmix_failed(why); };
    hooks.missing = [this](const std::string &why) { on_pmix_missing(why); };
    hooks.aborted = [this](const local::PmixAbortedT &aborted) { on_pmix_aborted(aborted); };
    hooks.overdue = [this](const local::PmixOverdueT &overdue) { on_pmix_overdue(overdue); };
    hooks.state = [this] { return pmix_state(); };
    hooks.scale = [this](const local::PmixScaleRequestT &request) { return pmix_scale(request); };
    hooks.restart = [this](const local::PmixRestartRequestT &request) { return pmix_restart(request); };
    pmix_ =
        std::make_unique<PmixRelay>(PmixRelay::Services{services_.loop, services_.port, services_.settings},
                                    std::move(hooks), mode == proto::PmixMode::Yes);
}

void Group::tell_pmix_of_world() {
    if (!pmix_ || !world_) return;
    auto world = membership();
    world ? pmix_->on_world(std::move(*world)) : pmix_->on_no_world();
}

/// The ranks of this node can not go on, or can not begin: as if one of them had failed.
void Group::on_pmix_failed(const std::string &why) {
    auto rank = rank_of(0);
    if (!rank || over()) return;
    std::string text = "There is no PMIx on " + services_.node + ": " + log::one_line(why);
    log::error({job(), step()}, text);
    add_event(proto::EventKind::Warning, text + ".", world_->id);
    elastic::WorkerExit exit;
    exit.generation = world_->id;
    exit.rank = *rank;
    exit.wait_status = exit_cannot_run << 8;
    exit.wall_time_us = wall_clock_us();
    exit.signature = no_server_signature;
    exit.error_text = std::move(text);
    feed_when_ready(elastic::LocalExit{std::move(exit)});
}

void Group::on_pmix_missing(const std::string &why) {
    if (over()) return;
    std::string text = "There is no PMIx on " + services_.node + ": " + log::one_line(why) +
                       ". The ranks go on without it; an MPI program can not begin there, or takes each of "
                       "them for a program "
                       "of its own (--dlrover-pmix=yes makes this a failure, =no does without servers)";
    log::warning({job(), step()}, text);
    add_event(proto::EventKind::Warning, text + ".", world_->id);
}

local::PmixStateT Group::pmix_state() const {
    local::PmixStateT state;
    auto view = member_ ? member_->view() : elastic::MemberView{};
    if (view.covered) state.safe_step = static_cast<std::int64_t>(view.covered->step.value());
    if (view.durable) state.durable_step = static_cast<std::int64_t>(view.durable->step.value());
    state.goodput = std::make_unique<local::GoodputT>(to_proto(final_goodput_.value_or(view.goodput)));
    return state;
}

/// How the rank ends its agent tells; where it does not end, it has failed all the same.
void Group::on_pmix_aborted(const local::PmixAbortedT &aborted) {
    auto rank = rank_of(aborted.local_rank);
    if (!rank) return;
    constexpr std::size_t max_text_bytes = 1024;
    std::string text = "The program aborted with status " + std::to_string(aborted.status);
    if (!aborted.text.empty()) text += ": " + log::one_line(aborted.text.substr(0, max_text_bytes));
    if (abort_timer_ && aborted_ == world_->id) return;  // the first one of a generation counts
    add_event(proto::EventKind::Warning, text + ".", world_->id, static_cast<std::int32_t>(rank->value()));
    aborted_ = world_->id;
    elastic::WorkerExit exit;
    exit.generation = world_->id;
    exit.rank = *rank;
    exit.wait_status = abort_wait_status(aborted.status);
    exit.wall_time_us = wall_clock_us();
    exit.signature = abort_signature(aborted.status, aborted.text);
    exit.error_text = std::move(text);
    abort_timer_ =
        services_.loop.after(abort_patience, [this, exit = std::move(exit)] { fail_aborted(exit); });
}

void Group::fail_aborted(const elastic::WorkerExit &exit) {
    abort_timer_.reset();
    if (!world_ || world_->id != exit.generation || exit.generation <= stopping_ || over()) return;
    log::warning({job(), step()}, "rank " + std::to_string(exit.rank.value()) +
                                      " has aborted, and its generation still runs: it is counted as failed");
    feed_when_ready(elastic::LocalExit{exit});
}

void Group::on_pmix_overdue(const local::PmixOverdueT &overdue) {
    if (overdue.local) return on_missing_neighbour(overdue);
    auto limit = std::chrono::duration_cast<std::chrono::seconds>(services_.settings.pmix.wait_limit);
    add_event(
        proto::EventKind::Warning,
        "Ranks of " + services_.node + " waited " + std::to_string(limit.count()) + " s in PMIx for " +
            log::one_line(overdue.purpose.substr(0, max_purpose_bytes)) +
            ", and other nodes, which live, did not do their part: the call has failed (pmix.wait_limit; "
            "\"dlrover status\" shows how far each rank is).",
        world_->id);
}

std::string Group::names_of(const std::vector<std::uint16_t> &local_ranks) const {
    constexpr std::size_t most = 8;
    std::string text;
    for (std::size_t i = 0; i < local_ranks.size() && i < most; ++i)
        if (auto rank = rank_of(local_ranks[i]))
            text += (text.empty() ? "" : ", ") + std::to_string(rank->value());
    if (local_ranks.size() > most) text += ", ...";
    return (local_ranks.size() == 1 ? "rank " : "ranks ") + text;
}

/// false: this message is not to be judged, it comes too soon after the last one.
bool Group::follows_wait(const local::PmixOverdueT &overdue) {
    auto now = services_.loop.now(), limit = EventLoop::Time(services_.settings.pmix.wait_limit);
    auto pause =
        std::clamp<EventLoop::Time>(limit / 30, std::chrono::milliseconds(100), std::chrono::seconds(10));
    bool goes_on = waited_for_in_ == world_->id && now - waited_for_at_ <= 10 * pause;
    if (goes_on && now - waited_for_at_ < pause / 2) return false;
    waited_for_at_ = now;
    if (goes_on) return true;
    waited_for_in_ = world_->id;
    idle_ranks_.clear();
    seen_.clear();
    auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
    std::string text = "On " + services_.node + ", " + names_of(overdue.waiting) + " waited " +
                       std::to_string(seconds.count()) + " s in PMIx for " +
                       log::one_line(overdue.purpose.substr(0, max_purpose_bytes));
    text += overdue.missing.empty()
                ? ", which does not come about"
                : ", to which " + names_of(overdue.missing) + " of this node did not come";
    add_event(proto::EventKind::Warning, text + " (pmix.wait_limit).", world_->id);
    return true;
}

Group::Agent *Group::agent_of_rank(std::uint16_t local_rank) {
    for (auto &[task, agent] : agents_)
        if (agent.pids.contains(local_rank)) return &agent;
    return nullptr;
}

/// Their agents tell: a daemon may not see what users' processes read and write, and knows those in
/// containers by other numbers. Of an older agent's ranks nothing is known.
void Group::look_at(const std::vector<std::uint16_t> &local_ranks) {
    std::map<Agent *, local::LookAtRanksT> orders;
    seen_.clear();
    for (std::uint16_t local_rank : local_ranks) {
        Agent *agent = agent_of_rank(local_rank);
        if (agent && agent->looks) orders[agent].local_ranks.push_back(local_rank);
    }
    for (auto &[agent, order] : orders) services_.port.push(agent->connection, std::move(order));
}

void Group::on_ranks_seen(const Agent &agent, const local::RanksSeenT &seen) {
    for (const auto &one : seen.ranks)
        if (agent.pids.contains(one->local_rank))
            seen_[one->local_rank] =
                Activity{std::chrono::microseconds(one->processor_us), one->bytes, one->in_kernel};
}

/// Nobody knows who takes part in it: one that works may be the one that is waited for. One of whom nothing
/// was told since the last look is not judged by this one.
bool Group::do_nothing(const std::vector<std::uint16_t> &local_ranks) {
    auto patience = std::clamp<EventLoop::Time>(services_.settings.pmix.wait_limit / 5,
                                                std::chrono::milliseconds(500), std::chrono::minutes(1));
    auto now = services_.loop.now();
    idle_ranks_.keep_only(local_ranks);
    bool all_idle = !local_ranks.empty();
    for (std::uint16_t local_rank : local_ranks) {
        auto seen = seen_.find(local_rank);
        bool is_idle = seen != seen_.end() && idle_ranks_.idle_for(local_rank, seen->second, now) >= patience;
        all_idle = is_idle && all_idle;
    }
    look_at(local_ranks);
    return all_idle;
}

/// pmix.busy_limit, once it is over.
std::optional<std::chrono::seconds> Group::busy_limit_over(const local::PmixOverdueT &overdue) const {
    auto limit = services_.settings.pmix.busy_limit;
    auto limit_ms = std::chrono::duration_cast<std::chrono::milliseconds>(limit).count();
    if (limit_ms == 0 || overdue.waited_ms < static_cast<std::uint64_t>(limit_ms)) return std::nullopt;
    return std::chrono::duration_cast<std::chrono::seconds>(limit);
}

/// Ranks that libpmix lets wait for others of this node hear of no error, and nothing else ends it where one
/// of them hangs. What computes, reads or writes is only late, and so is what waits for something published:
/// they wait for it as long as pmix.busy_limit says.
void Group::on_missing_neighbour(const local::PmixOverdueT &overdue) {
    constexpr std::size_t most_ranks = 4096, most_looked_at = 32;
    if (!world_ || world_->id <= stopping_ || over() || found_missing_in_ == world_->id) return;
    std::size_t ranks = overdue.waiting.size() + overdue.missing.size();
    if (std::max(ranks, overdue.asking.size()) > most_ranks || !follows_wait(overdue)) return;
    std::vector<std::uint16_t> may_hang = overdue.missing.empty() ? overdue.waiting : overdue.missing;
    std::erase_if(may_hang, [&](std::uint16_t local_rank) {
        auto rank = rank_of(local_rank);
        return !rank || rank_states_[*rank] == "finished";
    });
    if (may_hang.empty()) return;
    auto asks = [&](std::uint16_t local_rank) {
        return std::ranges::find(overdue.asking, local_rank) != overdue.asking.end();
    };
    std::stable_partition(may_hang.begin(), may_hang.end(), std::not_fn(asks));
    bool one_asks = asks(may_hang.back());
    Rank first = *rank_of(may_hang.front());
    if (auto limit = busy_limit_over(overdue)) return fail_missing(first, busy_text(overdue, *limit));
    if (may_hang.size() > most_looked_at) may_hang.resize(most_looked_at);
    if (!one_asks && do_nothing(may_hang)) fail_missing(first, idle_text(overdue));
}

std::string Group::idle_text(const local::PmixOverdueT &overdue) const {
    if (overdue.missing.empty())
        return " counts as failed: ranks of this node wait in PMIx for each other, and nothing of it comes "
               "about";
    return ", which does nothing, counts as failed: " + names_of(overdue.waiting) +
           " of this node wait for it in PMIx";
}

std::string Group::busy_text(const local::PmixOverdueT &overdue, std::chrono::seconds limit) const {
    std::string waited = " waited " + std::to_string(limit.count()) + " s in PMIx for ";
    std::string it =
        overdue.missing.size() < 2 ? "it" : "it, or for another one of " + names_of(overdue.missing);
    return " counts as failed, whatever it does: " +
           (overdue.missing.empty() ? "ranks of this node" + waited + "each other"
                                    : names_of(overdue.waiting) + " of this node" + waited + it) +
           " (pmix.busy_limit)";
}

/// what: follows the rank's name.
void Group::fail_missing(Rank rank, const std::string &what) {
    found_missing_in_ = world_->id;
    std::string text = "Rank " + std::to_string(rank.value()) + " on " + services_.node + what;
    log::warning({job(), step()}, text);
    add_event(proto::EventKind::Warning, text + ".", world_->id, static_cast<std::int32_t>(rank.value()));
    elastic::WorkerExit exit;
    exit.generation = world_->id;
    exit.rank = rank;
    exit.wait_status = SIGKILL;
    exit.wall_time_us = wall_clock_us();
    exit.signature = missing_signature;
    exit.error_text = std::move(text);
    feed_when_ready(elastic::LocalExit{std::move(exit)});
}

/// Not before its server is there; false: wait.
bool Group::add_pmix(local::WorldPublishedT &world) {
    if (!pmix_ || !world.active) return true;
    const auto *variables = pmix_->variables();
    if (variables == nullptr) return false;
    world.variables = *variables;
    pmix_->on_started();
    return true;
}

void Group::on_pmix_message(const Client &from, const local::MessageT &message) {
    if (registration().options->pmix == proto::PmixMode::No || record_.ended)
        return services_.port.fail(from.id, message.id, local::Refusal::Stale, "this step has no PMIx");
    create_pmix();
    if (const auto *hello = message.body.AsPmixHello()) return pmix_->on_hello(from, message.id, *hello);
    if (!pmix_->on_message(from, message))
        services_.port.fail(from.id, message.id, local::Refusal::BadMessage,
                            "a PMIx server has no such message");
}

void Group::on_pmix_word(const std::string &node, const std::vector<std::uint8_t> &payload) {
    auto from = index_of(node);
    if (!from || !pmix_ || !world_ || over()) return;
    auto place = std::ranges::find(world_->nodes, *from);
    if (place != world_->nodes.end())
        pmix_->on_word(static_cast<PmixRelay::Place>(place - world_->nodes.begin()), payload);
}

}  // namespace dlrover::daemon
