// SPDX-License-Identifier: Apache-2.0
// The sending half of message_codec.h.
#include <algorithm>

#include "daemon/id_runs.h"
#include "daemon/message_codec.h"
#include "daemon/message_wire.h"
#include "elastic/coding.h"
#include "peer_generated.h"
#include "proto/codec.h"

namespace dlrover::daemon {
namespace {

namespace wire = proto::peer;
using namespace elastic;

constexpr std::size_t many_seals = 16, shortest_rank_run = 4;

std::int64_t optional_number(const std::optional<TrainStep> &step) {
    return step ? static_cast<std::int64_t>(step->value()) : -1;
}
std::int64_t optional_age(const std::optional<Duration> &age) {
    return age ? std::max<std::int64_t>(age->count(), 0) : -1;
}

std::unique_ptr<proto::Generation> pack(const GenerationId &g) {
    return std::make_unique<proto::Generation>(g.term.value(), g.number);
}

std::vector<std::uint32_t> pack(const std::vector<NodeIndex> &nodes) {
    return pack_runs(nodes);
}

std::unique_ptr<wire::SealT> pack(const Seal &s) {
    auto w = std::make_unique<wire::SealT>();
    w->train_step = s.step.value();
    w->rank = s.rank.value();
    w->world_size = s.world_size;
    w->generation = pack(s.generation);
    w->to_storage = s.to_storage;
    return w;
}

/// Left out of the message where there is none.
template <typename Wire>
void pack_asked(Wire &w, const std::optional<CheckpointId> &asked) {
    if (!asked) return;
    w.asked_step = static_cast<std::int64_t>(asked->step.value());
    w.asked_generation = pack(asked->generation);
}

std::unique_ptr<wire::CheckpointT> pack(const std::optional<CheckpointId> &id) {
    if (!id) return nullptr;
    auto w = std::make_unique<wire::CheckpointT>();
    w->generation = pack(id->generation);
    w->train_step = id->step.value();
    return w;
}

std::unique_ptr<wire::WorkerExitT> pack(const WorkerExit &e) {
    auto w = std::make_unique<wire::WorkerExitT>();
    w->generation = pack(e.generation);
    w->rank = e.rank.value();
    w->wait_status = e.wait_status;
    w->wall_time_us = e.wall_time_us;
    w->signature = e.signature;
    w->oom = e.oom;
    w->error_text = e.error_text.substr(0, max_message_text);
    return w;
}

std::unique_ptr<wire::RankProgressT> pack(const RankProgress &p) {
    auto w = std::make_unique<wire::RankProgressT>();
    w->rank = p.rank.value();
    w->train_step = optional_number(p.step);
    w->steps_done = p.steps_done;
    w->step_sum_us = p.step_sum.count();
    w->save_sum_us = p.save_sum.count();
    w->saves_done = p.saves_done;
    w->saves_skipped = p.saves_skipped;
    w->since_first_step_us = p.since_first_step.count();
    return w;
}

std::unique_ptr<wire::SkipT> pack(const Skip &s) {
    auto w = std::make_unique<wire::SkipT>();
    w->rank = s.rank.value();
    w->train_step = s.step.value();
    return w;
}

std::vector<std::uint32_t> pack(const std::vector<Rank> &ranks) {
    std::vector<std::uint32_t> out;
    for (Rank r : ranks) out.push_back(r.value());
    return out;
}

std::unique_ptr<wire::ParityT> pack(const Parity &p) {
    auto w = std::make_unique<wire::ParityT>();
    w->generation = pack(p.id.generation);
    w->train_step = p.id.step.value();
    w->world_size = p.world_size;
    w->index = p.index;
    w->ranks = pack(p.ranks);
    w->to_storage = p.to_storage;
    return w;
}

std::unique_ptr<wire::RebuildT> pack(const Rebuild &r) {
    auto w = std::make_unique<wire::RebuildT>();
    w->rank = r.rank.value();
    w->node = r.node.value();
    w->row = pack(r.row);
    for (const RebuildPart &part : r.parts) {
        w->part_units.push_back(part.unit);
        w->part_nodes.push_back(part.node.value());
    }
    return w;
}

template <typename Wire, typename T>
std::vector<std::unique_ptr<Wire>> pack_all(const std::vector<T> &items) {
    std::vector<std::unique_ptr<Wire>> out;
    for (const T &item : items) out.push_back(pack(item));
    return out;
}

/// None: there is nothing to say.
std::unique_ptr<wire::ScalingT> pack(const Scaling &s) {
    if (s.number == 0) return nullptr;
    auto w = std::make_unique<wire::ScalingT>();
    w->number = s.number;
    w->nodes = s.nodes;
    w->released = pack(s.released);
    return w;
}

bool same_set(const Seal &a, const Seal &b) {
    return std::tie(a.step, a.generation, a.world_size, a.to_storage) ==
           std::tie(b.step, b.generation, b.world_size, b.to_storage);
}

/// In the same order.
std::vector<std::unique_ptr<wire::SealSetT>> pack_sets(const std::vector<Seal> &seals) {
    std::vector<std::unique_ptr<wire::SealSetT>> out;
    for (std::size_t i = 0, end = 0; i < seals.size(); i = end) {
        std::vector<Rank> ranks;
        for (; end < seals.size() && same_set(seals[i], seals[end]); ++end) ranks.push_back(seals[end].rank);
        auto &w = out.emplace_back(std::make_unique<wire::SealSetT>());
        w->train_step = seals[i].step.value();
        w->world_size = seals[i].world_size;
        w->generation = pack(seals[i].generation);
        w->to_storage = seals[i].to_storage;
        w->ranks = pack_runs(ranks, 1, shortest_rank_run);
    }
    return out;
}

std::unique_ptr<wire::NodeReportT> pack(const NodeReport &r) {
    auto w = std::make_unique<wire::NodeReportT>();
    w->ready = r.ready;
    w->running = pack(r.running);
    w->stopped = pack(r.stopped);
    if (r.seals.size() < many_seals)
        w->seals = pack_all<wire::SealT>(r.seals);
    else
        w->seal_sets = pack_sets(r.seals);
    w->finished = pack(r.finished);
    w->exits = pack_all<wire::WorkerExitT>(r.exits);
    w->progress = pack_all<wire::RankProgressT>(r.progress);
    w->signal = r.signal;
    pack_asked(*w, r.asked);
    w->exposed = r.exposed;
    w->safe = pack(r.safe);
    w->parities = pack_all<wire::ParityT>(r.parities);
    w->knows = pack(r.knows);
    if (r.rollback) {
        w->rollback = std::make_unique<wire::RollbackT>();
        w->rollback->from = pack(r.rollback->from);
        w->rollback->to = r.rollback->to.value();
    }
    if (r.damaged) {
        w->damaged = std::make_unique<wire::DamagedT>();
        w->damaged->checkpoint = pack(std::optional(r.damaged->id));
        w->damaged->rank = r.damaged->rank.value();
    }
    w->number = r.number;
    w->durable = pack(r.durable);
    w->skips = pack_all<wire::SkipT>(r.skips);
    w->scaling = pack(r.scaling);
    w->without_slurm_us = r.without_slurm.count();
    return w;
}

/// After how many places a long list goes on with the next node, as far as some spots of it tell: at one a
/// node may be missing.
std::size_t run_stride(const std::vector<NodeIndex> &nodes) {
    constexpr std::size_t alike = 64, spots = 5;
    for (std::size_t spot = 1; spot <= spots; ++spot) {
        std::size_t from = nodes.size() * spot / (spots + 1);
        for (std::size_t stride = 1; stride <= max_id_stride && from + stride + alike <= nodes.size();
             ++stride) {
            std::size_t i = from;
            while (i < from + alike && nodes[i + stride].value() == nodes[i].value() + 1) ++i;
            if (i == from + alike) return stride;
        }
    }
    return 1;
}

/// Where each rank's object is after a change of size: the nodes follow each other once in so many ranks as
/// each has.
void pack_sources(wire::WorldT &w, const std::vector<ObjectSource> &sources) {
    std::vector<Rank> ranks;
    std::vector<NodeIndex> nodes;
    for (const ObjectSource &s : sources) {
        ranks.push_back(s.rank);
        nodes.push_back(s.node);
    }
    w.source_ranks = pack_runs(ranks);
    w.source_nodes = pack_runs(nodes, run_stride(nodes));
}

std::unique_ptr<wire::WorldT> pack(const World &world) {
    auto w = std::make_unique<wire::WorldT>();
    w->generation = pack(world.id);
    w->nodes = pack(world.nodes);
    w->spares = pack(world.spares);
    w->restore_step = optional_number(world.restore_step);
    w->restart_count = world.restart_count;
    w->master_port = world.master_port;
    w->reason = world.reason.substr(0, max_message_text);
    w->restore_generation = pack(world.restore_generation);
    w->budget_used = world.budget_used;
    w->stored_world_size = world.stored_world_size;
    w->memory_world_size = world.memory_world_size;
    std::size_t partners_each = world.nodes.empty() ? 1 : world.partners.size() / world.nodes.size();
    w->partners = pack_runs(world.partners, std::max<std::size_t>(partners_each, 1));
    pack_sources(*w, world.sources);
    w->groups = world.groups;
    w->rebuilds = pack_all<wire::RebuildT>(world.rebuilds);
    for (const Suspect &s : world.suspects) {
        auto suspect = std::make_unique<wire::SuspectT>();
        suspect->generation = pack(s.id.generation);
        suspect->train_step = s.id.step.value();
        suspect->back_to = s.back_to.value();
        suspect->since = pack(s.since);
        suspect->signature = s.signature;
        suspect->by_person = s.by_person;
        w->suspects.push_back(std::move(suspect));
    }
    w->strikes = world.strikes.count;
    w->strike_signature = world.strikes.signature;
    return w;
}

std::unique_ptr<wire::RosterT> pack(const Roster &r) {
    auto w = std::make_unique<wire::RosterT>();
    w->term = r.term.value();
    for (const NodeSpec &n : r.added) {
        auto spec = std::make_unique<wire::NodeSpecT>();
        spec->ranks = n.ranks;
        spec->name = n.name;
        spec->companion = n.companion ? n.companion->value() : 0;
        spec->step = n.step ? n.step->value() : 0;
        w->added.push_back(std::move(spec));
    }
    w->counted = pack(r.counted);
    w->firm_added = r.firm_added;
    w->firm_counted = r.firm_counted;
    return w;
}

std::vector<std::unique_ptr<wire::OpenWorldT>> pack(const std::vector<OpenWorld> &worlds) {
    std::vector<std::unique_ptr<wire::OpenWorldT>> out;
    for (const OpenWorld &world : worlds) {
        auto &w = out.emplace_back(std::make_unique<wire::OpenWorldT>());
        w->id = pack(world.id);
        w->nodes = pack(world.nodes);
    }
    return out;
}

std::unique_ptr<wire::PromiseT> pack(const Promise &p) {
    auto w = std::make_unique<wire::PromiseT>();
    w->term = p.term.value();
    w->voted_for = p.voted_for ? static_cast<std::int32_t>(p.voted_for->value()) : -1;
    w->generation = pack(p.generation);
    w->world_nodes = pack(p.world_nodes);
    w->removed = pack(p.removed);
    w->settled = pack(p.settled);
    if (p.world) w->world = pack(*p.world);
    if (p.roster != Roster{}) w->roster = pack(p.roster);  // somebody has joined
    w->scaling = pack(p.scaling);
    w->open = pack(p.open);
    return w;
}

std::unique_ptr<wire::GoodputT> pack(const Goodput &g) {
    auto w = std::make_unique<wire::GoodputT>();
    w->wall_us = g.wall.count();
    w->productive_us = g.productive.count();
    w->startup_us = g.startup.count();
    w->lost_steps_us = g.lost_steps.count();
    w->recovery_us = g.recovery.count();
    w->save_us = g.save.count();
    w->other_us = g.other.count();
    w->steps = g.steps;
    w->steps_repeated = g.steps_repeated;
    w->checkpoints = g.checkpoints;
    w->checkpoints_skipped = g.checkpoints_skipped;
    w->restarts = g.restarts;
    w->counted_generation = pack(g.counted.generation);
    w->counted_steps = g.counted.steps;
    w->counted_save_us = g.counted.save.count();
    w->counted_skipped = g.counted.skipped;
    w->counted_step = optional_number(g.counted.step);
    return w;
}

void pack_into(wire::GroupMessageT &out, const VoteRequest &m) {
    wire::VoteRequestT w;
    w.term = m.term.value();
    w.last_generation = pack(m.last_generation);
    w.removed = pack(m.removed);
    out.body.Set(std::move(w));
}
void pack_into(wire::GroupMessageT &out, const VoteReply &m) {
    wire::VoteReplyT w;
    w.term = m.term.value();
    w.granted = m.granted;
    w.promise = pack(m.promise);
    w.report = pack(m.report);
    w.whole_ago_us = optional_age(m.whole_ago);
    out.body.Set(std::move(w));
}
void pack_into(wire::GroupMessageT &out, const Heartbeat &m) {
    wire::HeartbeatT w;
    w.term = m.term.value();
    w.sequence = m.sequence;
    if (m.world) w.world = pack(*m.world);
    w.complete_step = optional_number(m.complete_step);
    w.complete_generation = pack(m.complete_generation);
    w.goodput = pack(m.goodput);
    w.acked = m.acked;
    w.acting = m.acting;
    w.removed = pack(m.removed);
    w.settled = m.settled;
    w.void_below = optional_number(m.void_below);
    w.void_generation = pack(m.void_generation);
    pack_asked(w, m.asked);
    w.protect = pack(m.protect);
    w.safe = pack(m.safe);
    w.freed = pack(m.freed);
    w.covered = pack(m.covered);
    w.of_world = pack(m.of_world);
    if (m.roster) w.roster = pack(*m.roster);
    w.whole_ago_us = optional_age(m.whole_ago);
    w.lost = pack(m.lost);
    w.durable = pack(m.durable);
    w.scaling = pack(m.scaling);
    w.job_ends_in_us = optional_age(m.job_ends_in);
    out.body.Set(std::move(w));
}
void pack_into(wire::GroupMessageT &out, const HeartbeatReply &m) {
    wire::HeartbeatReplyT w;
    w.term = m.term.value();
    w.sequence = m.sequence;
    w.report = pack(m.report);
    out.body.Set(std::move(w));
}
void pack_into(wire::GroupMessageT &out, const Prepare &m) {
    wire::PrepareT w;
    w.term = m.term.value();
    w.generation = pack(m.generation);
    w.world_nodes = pack(m.world_nodes);
    w.removed = pack(m.removed);
    w.reason = m.reason.substr(0, max_message_text);
    w.lost_by = pack(m.losses.of);
    w.lost_ranks = pack(m.losses.ranks);
    w.lost_nodes = pack(m.losses.nodes);
    w.open = pack(m.open);
    out.body.Set(std::move(w));
}
void pack_into(wire::GroupMessageT &out, const PrepareReply &m) {
    wire::PrepareReplyT w;
    w.term = m.term.value();
    w.generation = pack(m.generation);
    w.accepted = m.accepted;
    w.port = m.port;
    w.report = pack(m.report);
    if (m.world) w.world = pack(*m.world);
    out.body.Set(std::move(w));
}
void pack_into(wire::GroupMessageT &out, const Commit &m) {
    wire::CommitT w;
    w.term = m.term.value();
    w.world = pack(m.world);
    out.body.Set(std::move(w));
}
void pack_into(wire::GroupMessageT &out, const Report &m) {
    wire::ReportT w;
    w.term = m.term.value();
    w.report = pack(m.report);
    out.body.Set(std::move(w));
}
void pack_into(wire::GroupMessageT &out, const CheckOrder &m) {
    wire::CheckOrderT w;
    w.term = m.term.value();
    w.check = m.check;
    w.partner = m.partner.value();
    w.work = m.work;
    w.gpus = m.gpus;
    out.body.Set(std::move(w));
}
void pack_into(wire::GroupMessageT &out, const CheckReport &m) {
    wire::CheckReportT w;
    w.term = m.term.value();
    w.check = m.check;
    w.ok = m.ok;
    w.work_us = m.work.count();
    w.exchange_us = m.exchange.count();
    w.unfit = m.unfit;
    w.text = m.text.substr(0, max_message_text);
    out.body.Set(std::move(w));
}
void pack_into(wire::GroupMessageT &out, const Dismissal &m) {
    wire::DismissalT w;
    w.term = m.term.value();
    w.text = m.text.substr(0, max_message_text);
    out.body.Set(std::move(w));
}
void pack_into(wire::GroupMessageT &out, const Reach &m) {
    wire::ReachT w;
    w.term = m.term.value();
    w.node = m.node.value();
    w.asker = m.asker.value();
    out.body.Set(std::move(w));
}
void pack_into(wire::GroupMessageT &out, const Reached &m) {
    wire::ReachedT w;
    w.term = m.term.value();
    w.node = m.node.value();
    w.asker = m.asker.value();
    out.body.Set(std::move(w));
}
void pack_into(wire::GroupMessageT &out, const Finish &m) {
    wire::GroupFinishT w;
    w.term = m.term.value();
    w.exit_code = m.exit_code;
    w.message = m.message.substr(0, max_message_text);
    w.goodput = pack(m.goodput);
    w.next_run = static_cast<proto::NextRun>(m.next_run);
    w.excluded = pack(m.excluded);
    out.body.Set(std::move(w));
}

}  // namespace

proto::Bytes encode_message(const Message &message) {
    wire::GroupMessageT out;
    std::visit([&](const auto &m) { pack_into(out, m); }, message);
    return proto::encode<wire::GroupMessage>(out, wire::GroupMessageIdentifier());
}

proto::Bytes encode_promise(const Promise &promise) {
    wire::PromiseRecordT out;
    out.promise = pack(promise);
    return proto::encode<wire::PromiseRecord>(out, promise_identifier);
}

}  // namespace dlrover::daemon
