// SPDX-License-Identifier: Apache-2.0
#include "daemon/message_codec.h"

#include <algorithm>

#include "daemon/id_runs.h"
#include "elastic/coding.h"
#include "peer_generated.h"
#include "proto/codec.h"

namespace dlrover::daemon {
namespace {

namespace wire = proto::peer;
using namespace elastic;

constexpr std::size_t max_list = 1u << 17;
constexpr std::size_t max_text = 8192;
constexpr std::size_t many_seals = 16, shortest_rank_run = 4;
constexpr std::size_t max_name = 256;
constexpr int max_signal = 64;
constexpr const char *promise_identifier = "DLR1";

std::int64_t optional_number(const std::optional<TrainStep> &step) {
    return step ? static_cast<std::int64_t>(step->value()) : -1;
}
std::int64_t optional_age(const std::optional<Duration> &age) {
    return age ? std::max<std::int64_t>(age->count(), 0) : -1;
}
std::optional<Duration> optional_age(std::int64_t us) {
    if (us < 0) return std::nullopt;
    return Duration(us);
}
std::optional<TrainStep> optional_step(std::int64_t number) {
    if (number < 0) return std::nullopt;
    return TrainStep(static_cast<std::uint64_t>(number));
}

std::unique_ptr<proto::Generation> pack(const GenerationId &g) {
    return std::make_unique<proto::Generation>(g.term.value(), g.number);
}
GenerationId unpack(const std::unique_ptr<proto::Generation> &g) {
    return g ? GenerationId{Term(g->term()), g->number()} : GenerationId{};
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
template <typename Wire>
std::optional<CheckpointId> unpack_asked(const Wire &w) {
    if (w.asked_step < 0) return std::nullopt;
    return CheckpointId{unpack(w.asked_generation), TrainStep(static_cast<std::uint64_t>(w.asked_step))};
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
    w->error_text = e.error_text.substr(0, max_text);
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
    w->reason = world.reason.substr(0, max_text);
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
    w.reason = m.reason.substr(0, max_text);
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
    out.body.Set(std::move(w));
}
void pack_into(wire::GroupMessageT &out, const CheckReport &m) {
    wire::CheckReportT w;
    w.term = m.term.value();
    w.check = m.check;
    w.ok = m.ok;
    w.work_us = m.work.count();
    w.exchange_us = m.exchange.count();
    w.text = m.text.substr(0, max_text);
    out.body.Set(std::move(w));
}
void pack_into(wire::GroupMessageT &out, const Dismissal &m) {
    wire::DismissalT w;
    w.term = m.term.value();
    w.text = m.text.substr(0, max_text);
    out.body.Set(std::move(w));
}
void pack_into(wire::GroupMessageT &out, const Finish &m) {
    wire::GroupFinishT w;
    w.term = m.term.value();
    w.exit_code = m.exit_code;
    w.message = m.message.substr(0, max_text);
    w.goodput = pack(m.goodput);
    w.next_run = static_cast<proto::NextRun>(m.next_run);
    w.excluded = pack(m.excluded);
    out.body.Set(std::move(w));
}

/// Unpacks and remembers whether anything was out of range.
class Unpacker {
  public:
    explicit Unpacker(std::uint32_t node_count) : node_count_(node_count) {}
    bool ok() const noexcept { return ok_; }

    std::vector<NodeIndex> nodes(const std::vector<std::uint32_t> &in) { return nodes(in, node_count_); }
    std::vector<NodeIndex> nodes(const std::vector<std::uint32_t> &in, std::size_t most) {
        auto found = unpack_runs<NodeIndex>(in, node_count_, most);
        expect(found.has_value());
        return found ? std::move(*found) : std::vector<NodeIndex>{};
    }
    NodeIndex node(std::uint32_t in) {
        expect(in < node_count_);
        return NodeIndex(in);
    }
    std::string text(std::string in) {
        expect(in.size() <= max_text);
        return in;
    }
    NextRun next_run(proto::NextRun in) {
        if (!expect(in <= proto::NextRun::MAX)) return NextRun::none;
        return static_cast<NextRun>(in);
    }
    NodeReport report(const std::unique_ptr<wire::NodeReportT> &w) {
        NodeReport r;
        if (!expect(w && w->seals.size() <= max_list && w->finished.size() <= max_list &&
                    w->exits.size() <= max_list && w->progress.size() <= max_list &&
                    w->parities.size() <= max_list && w->skips.size() <= max_list))
            return r;
        r.ready = w->ready;
        r.running = unpack(w->running);
        r.stopped = unpack(w->stopped);
        r.seals = seals(*w);
        for (std::uint32_t rank : w->finished) r.finished.emplace_back(rank);
        for (const auto &e : w->exits)
            r.exits.push_back(WorkerExit{unpack(e->generation), Rank(e->rank), e->wait_status,
                                         e->wall_time_us, e->signature, e->oom, text(e->error_text)});
        for (const auto &p : w->progress) r.progress.push_back(progress(*p));
        if (expect(w->signal >= 0 && w->signal <= max_signal)) r.signal = w->signal;
        r.asked = unpack_asked(*w);
        r.exposed = w->exposed;
        r.safe = checkpoint(w->safe);
        r.knows = unpack(w->knows);
        if (w->rollback && expect(w->rollback->to < INT64_MAX))
            r.rollback = Rollback{unpack(w->rollback->from), TrainStep(w->rollback->to)};
        auto damaged = w->damaged ? checkpoint(w->damaged->checkpoint) : std::nullopt;
        if (damaged) r.damaged = Damaged{*damaged, Rank(w->damaged->rank)};
        r.durable = checkpoint(w->durable);
        for (const auto &p : w->parities) r.parities.push_back(parity(*p));
        r.number = w->number;
        for (const auto &s : w->skips)
            if (expect(s->train_step < INT64_MAX))
                r.skips.push_back({Rank(s->rank), TrainStep(s->train_step)});
        r.scaling = scaling(w->scaling);
        return r;
    }
    std::vector<Seal> seals(const wire::NodeReportT &w) {
        std::vector<Seal> out;
        for (const auto &s : w.seals)
            out.push_back(Seal{TrainStep(s->train_step), Rank(s->rank), s->world_size, unpack(s->generation),
                               s->to_storage});
        if (!expect(w.seal_sets.size() <= max_list)) return out;
        for (const auto &set : w.seal_sets) {
            auto ranks = unpack_runs<Rank>(set->ranks, id_run, max_list - std::min(out.size(), max_list));
            if (!expect(ranks.has_value())) return out;
            Seal seal{
                TrainStep(set->train_step), {}, set->world_size, unpack(set->generation), set->to_storage};
            for (Rank rank : *ranks) {
                seal.rank = rank;
                out.push_back(seal);
            }
        }
        return out;
    }
    Losses losses(const wire::PrepareT &w) {
        if (!expect(w.lost_ranks.size() <= Losses::most)) return {};
        return {
            unpack(w.lost_by), {w.lost_ranks.begin(), w.lost_ranks.end()}, nodes(w.lost_nodes, Losses::most)};
    }
    /// As many for each node.
    std::vector<NodeIndex> partners(const std::vector<std::uint32_t> &in, std::size_t of_nodes) {
        std::vector<NodeIndex> found = nodes(in, max_list);
        expect(found.size() % of_nodes == 0 && found.size() / of_nodes < node_count_);
        return found;
    }
    std::vector<ObjectSource> sources(const wire::WorldT &w) {
        std::vector<ObjectSource> out;
        auto ranks = unpack_runs<Rank>(w.source_ranks, id_run, max_list);
        auto at = nodes(w.source_nodes, max_list);
        if (!expect(ranks && ranks->size() == at.size())) return out;
        for (std::size_t i = 0; i < at.size(); ++i) out.push_back({(*ranks)[i], at[i]});
        return out;
    }
    Parity parity(const wire::ParityT &w) {
        Parity p;
        expect(w.train_step <= INT64_MAX && w.index < max_code_parity);
        p.id = {unpack(w.generation), TrainStep(w.train_step)};
        p.world_size = w.world_size;
        p.index = w.index;
        p.ranks = row(w.ranks);
        p.to_storage = w.to_storage;
        return p;
    }
    std::vector<Rank> row(const std::vector<std::uint32_t> &in) {
        if (!expect(!in.empty() && in.size() <= max_code_data)) return {};
        return {in.begin(), in.end()};
    }
    Rebuild rebuild(const wire::RebuildT &w) {
        Rebuild r{Rank(w.rank), NodeIndex(w.node), row(w.row), {}};
        if (!expect(w.node < node_count_ && w.part_units.size() == w.part_nodes.size() &&
                    w.part_units.size() == w.row.size()))
            return r;
        for (std::size_t i = 0; i < w.part_units.size(); ++i)
            if (expect(w.part_nodes[i] < node_count_))
                r.parts.push_back({w.part_units[i], NodeIndex(w.part_nodes[i])});
        return r;
    }
    std::optional<CheckpointId> checkpoint(const std::unique_ptr<wire::CheckpointT> &w) {
        if (!w || !expect(w->train_step <= INT64_MAX)) return std::nullopt;
        return CheckpointId{unpack(w->generation), TrainStep(w->train_step)};
    }
    std::vector<Suspect> suspects(const wire::WorldT &w) {
        std::vector<Suspect> out;
        if (!expect(w.suspects.size() <= max_suspects)) return out;
        for (const auto &s : w.suspects)
            if (expect(s->train_step <= INT64_MAX && s->back_to < s->train_step))
                out.push_back({{unpack(s->generation), TrainStep(s->train_step)},
                               TrainStep(s->back_to),
                               unpack(s->since),
                               s->signature,
                               s->by_person});
        return out;
    }
    std::optional<World> optional_world(const std::unique_ptr<wire::WorldT> &w) {
        if (!w) return std::nullopt;
        World world;
        world.id = unpack(w->generation);
        world.nodes = nodes(w->nodes);
        world.spares = nodes(w->spares);
        world.restore_step = optional_step(w->restore_step);
        world.restart_count = w->restart_count;
        world.master_port = w->master_port;
        world.reason = text(w->reason);
        world.restore_generation = unpack(w->restore_generation);
        world.budget_used = w->budget_used;
        world.stored_world_size = world.restore_step ? w->stored_world_size : 0;
        if (!expect(!world.nodes.empty())) return world;
        world.partners = partners(w->partners, world.nodes.size());
        world.sources = sources(*w);
        world.memory_world_size = world.restore_step ? w->memory_world_size : 0;
        // Each rank's object is somewhere.
        for (std::size_t i = 0; world.memory_world_size > 0 && i < world.sources.size(); ++i)
            expect(world.sources[i].rank.value() == i);
        expect(world.memory_world_size == 0 || world.sources.size() == world.memory_world_size);
        if (!expect(w->groups.size() <= world.nodes.size() && w->rebuilds.size() <= max_list)) return world;
        world.groups = w->groups;
        for (const auto &r : w->rebuilds) world.rebuilds.push_back(rebuild(*r));
        world.suspects = suspects(*w);
        world.strikes = {w->strike_signature, w->strikes};
        expect(has_sound_groups(world));
        return world;
    }
    World world(const std::unique_ptr<wire::WorldT> &w) {
        auto found = optional_world(w);
        expect(found.has_value());
        return found.value_or(World{});
    }
    std::vector<OpenWorld> open_worlds(const std::vector<std::unique_ptr<wire::OpenWorldT>> &worlds) {
        std::vector<OpenWorld> out;
        if (!expect(worlds.size() <= max_open_worlds)) return out;
        for (const auto &w : worlds)
            if (expect(w != nullptr)) out.push_back({unpack(w->id), nodes(w->nodes)});
        return out;
    }
    Promise promise(const std::unique_ptr<wire::PromiseT> &w) {
        Promise p;
        if (!expect(w != nullptr)) return p;
        p.term = Term(w->term);
        if (w->voted_for >= 0 && expect(static_cast<std::uint32_t>(w->voted_for) < node_count_))
            p.voted_for = NodeIndex(static_cast<std::uint32_t>(w->voted_for));
        p.generation = unpack(w->generation);
        p.world_nodes = nodes(w->world_nodes);
        p.open = open_worlds(w->open);
        p.removed = nodes(w->removed);
        p.settled = nodes(w->settled);
        p.world = optional_world(w->world);
        p.roster = roster(w->roster).value_or(Roster{});
        p.scaling = scaling(w->scaling);
        return p;
    }
    Scaling scaling(const std::unique_ptr<wire::ScalingT> &w) {
        if (!w || !expect(w->number > 0 && w->nodes > 0 && w->nodes <= max_table)) return {};
        return {w->number, w->nodes, nodes(w->released)};
    }
    std::optional<Roster> roster(const std::unique_ptr<wire::RosterT> &w) {
        if (!w) return std::nullopt;
        Roster r;
        r.counted = nodes(w->counted, max_joined);
        bool in_bounds = w->added.size() <= max_joined && r.counted.size() <= w->added.size() &&
                         w->firm_added <= w->added.size() && w->firm_counted <= r.counted.size();
        if (!expect(in_bounds)) return {};
        r.term = Term(w->term);
        for (const auto &n : w->added) {
            if (!expect(n->ranks > 0 && !n->name.empty() && n->name.size() <= max_name)) return r;
            auto companion = n->companion == 0 ? std::nullopt : std::optional(JobId(n->companion));
            auto step = n->step == 0 ? std::nullopt : std::optional(StepId(n->step));
            r.added.push_back({n->ranks, n->name, companion, step});
        }
        r.firm_added = w->firm_added;
        r.firm_counted = w->firm_counted;
        return r;
    }
    Goodput goodput(const std::unique_ptr<wire::GoodputT> &w) {
        Goodput g;
        if (!w) return g;
        g.wall = Duration(w->wall_us);
        g.productive = Duration(w->productive_us);
        g.startup = Duration(w->startup_us);
        g.lost_steps = Duration(w->lost_steps_us);
        g.recovery = Duration(w->recovery_us);
        g.save = Duration(w->save_us);
        g.other = Duration(w->other_us);
        g.steps = w->steps;
        g.steps_repeated = w->steps_repeated;
        g.checkpoints = w->checkpoints;
        g.checkpoints_skipped = w->checkpoints_skipped;
        g.restarts = w->restarts;
        g.counted = {unpack(w->counted_generation), w->counted_steps, Duration(w->counted_save_us),
                     w->counted_skipped, optional_step(w->counted_step)};
        return g;
    }
    bool expect(bool condition) {
        ok_ = ok_ && condition;
        return condition;
    }

  private:
    static RankProgress progress(const wire::RankProgressT &w) {
        RankProgress p;
        p.rank = Rank(w.rank);
        p.step = optional_step(w.train_step);
        p.steps_done = w.steps_done;
        p.step_sum = Duration(w.step_sum_us);
        p.save_sum = Duration(w.save_sum_us);
        p.saves_done = w.saves_done;
        p.saves_skipped = w.saves_skipped;
        p.since_first_step = Duration(w.since_first_step_us);
        return p;
    }
    std::uint32_t node_count_;
    bool ok_ = true;
};

Message unpack_body(Unpacker &u, wire::BodyUnion &body) {
    switch (body.type) {
        case wire::Body::VoteRequest:
            return VoteRequest{Term(body.AsVoteRequest()->term),
                               unpack(body.AsVoteRequest()->last_generation),
                               u.nodes(body.AsVoteRequest()->removed)};
        case wire::Body::VoteReply: {
            auto &w = *body.AsVoteReply();
            return VoteReply{Term(w.term), w.granted, u.promise(w.promise), u.report(w.report),
                             optional_age(w.whole_ago_us)};
        }
        case wire::Body::Heartbeat: {
            auto &w = *body.AsHeartbeat();
            return Heartbeat{Term(w.term),
                             w.sequence,
                             u.optional_world(w.world),
                             optional_step(w.complete_step),
                             unpack(w.complete_generation),
                             u.goodput(w.goodput),
                             w.acked,
                             w.acting,
                             u.nodes(w.removed),
                             w.settled,
                             optional_step(w.void_below),
                             unpack(w.void_generation),
                             unpack_asked(w),
                             u.checkpoint(w.protect),
                             u.checkpoint(w.safe),
                             u.checkpoint(w.freed),
                             u.checkpoint(w.covered),
                             unpack(w.of_world),
                             u.roster(w.roster),
                             optional_age(w.whole_ago_us),
                             u.checkpoint(w.lost),
                             u.checkpoint(w.durable),
                             u.scaling(w.scaling),
                             optional_age(w.job_ends_in_us)};
        }
        case wire::Body::HeartbeatReply: {
            auto &w = *body.AsHeartbeatReply();
            return HeartbeatReply{Term(w.term), w.sequence, u.report(w.report)};
        }
        case wire::Body::Prepare: {
            auto &w = *body.AsPrepare();
            return Prepare{Term(w.term),     unpack(w.generation), u.nodes(w.world_nodes), u.nodes(w.removed),
                           u.text(w.reason), u.losses(w),          u.open_worlds(w.open)};
        }
        case wire::Body::PrepareReply: {
            auto &w = *body.AsPrepareReply();
            return PrepareReply{Term(w.term), unpack(w.generation), w.accepted,
                                w.port,       u.report(w.report),   u.optional_world(w.world)};
        }
        case wire::Body::Commit:
            return Commit{Term(body.AsCommit()->term), u.world(body.AsCommit()->world)};
        case wire::Body::Report:
            return Report{Term(body.AsReport()->term), u.report(body.AsReport()->report)};
        case wire::Body::GroupFinish: {
            auto &w = *body.AsGroupFinish();
            return Finish{Term(w.term),           w.exit_code,        u.text(w.message), u.goodput(w.goodput),
                          u.next_run(w.next_run), u.nodes(w.excluded)};
        }
        case wire::Body::CheckOrder: {
            auto &w = *body.AsCheckOrder();
            return CheckOrder{Term(w.term), w.check, u.node(w.partner), w.work};
        }
        case wire::Body::CheckReport: {
            auto &w = *body.AsCheckReport();
            u.expect(w.work_us >= 0 && w.exchange_us >= 0);
            return CheckReport{Term(w.term),  w.check, w.ok, Duration(w.work_us), Duration(w.exchange_us),
                               u.text(w.text)};
        }
        case wire::Body::Dismissal:
            return Dismissal{Term(body.AsDismissal()->term), u.text(body.AsDismissal()->text)};
        case wire::Body::NONE:
            break;
    }
    u.expect(false);
    return VoteRequest{};
}

}  // namespace

proto::Bytes encode_message(const Message &message) {
    wire::GroupMessageT out;
    std::visit([&](const auto &m) { pack_into(out, m); }, message);
    return proto::encode<wire::GroupMessage>(out, wire::GroupMessageIdentifier());
}

Result<Message> decode_message(std::span<const std::uint8_t> bytes, std::uint32_t node_count) {
    auto decoded = proto::decode<wire::GroupMessage>(bytes, wire::GroupMessageIdentifier());
    if (!decoded) return decoded.take_status();
    Unpacker unpacker(node_count);
    Message message = unpack_body(unpacker, decoded->body);
    if (!unpacker.ok()) return Status(Code::corrupt, "a group message has a value out of range");
    return message;
}

proto::Bytes encode_promise(const Promise &promise) {
    wire::PromiseRecordT out;
    out.promise = pack(promise);
    return proto::encode<wire::PromiseRecord>(out, promise_identifier);
}

Result<Promise> decode_promise(std::span<const std::uint8_t> bytes, std::uint32_t node_count) {
    auto decoded = proto::decode<wire::PromiseRecord>(bytes, promise_identifier);
    if (!decoded) return decoded.take_status();
    Unpacker unpacker(node_count);
    Promise promise = unpacker.promise(decoded->promise);
    if (!unpacker.ok()) return Status(Code::corrupt, "a promise has a value out of range");
    return promise;
}

}  // namespace dlrover::daemon
