// SPDX-License-Identifier: Apache-2.0
// The receiving half of message_codec.h: nothing that comes is believed.
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

constexpr std::size_t max_list = 1u << 17;
constexpr std::size_t max_name = 256;
constexpr int max_signal = 64;

std::optional<Duration> optional_age(std::int64_t us) {
    if (us < 0) return std::nullopt;
    return Duration(us);
}
std::optional<TrainStep> optional_step(std::int64_t number) {
    if (number < 0) return std::nullopt;
    return TrainStep(static_cast<std::uint64_t>(number));
}
GenerationId unpack(const std::unique_ptr<proto::Generation> &g) {
    return g ? GenerationId{Term(g->term()), g->number()} : GenerationId{};
}
template <typename Wire>
std::optional<CheckpointId> unpack_asked(const Wire &w) {
    if (w.asked_step < 0) return std::nullopt;
    return CheckpointId{unpack(w.asked_generation), TrainStep(static_cast<std::uint64_t>(w.asked_step))};
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
        expect(in.size() <= max_message_text);
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
        if (expect(w->without_slurm_us >= 0)) r.without_slurm = Duration(w->without_slurm_us);
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
            return CheckOrder{Term(w.term), w.check, u.node(w.partner), w.work, w.gpus};
        }
        case wire::Body::CheckReport: {
            auto &w = *body.AsCheckReport();
            u.expect(w.work_us >= 0 && w.exchange_us >= 0);
            return CheckReport{Term(w.term),   w.check, w.ok, Duration(w.work_us), Duration(w.exchange_us),
                               u.text(w.text), w.unfit};
        }
        case wire::Body::Dismissal:
            return Dismissal{Term(body.AsDismissal()->term), u.text(body.AsDismissal()->text)};
        case wire::Body::Reach: {
            auto &w = *body.AsReach();
            return Reach{Term(w.term), u.node(w.node), u.node(w.asker)};
        }
        case wire::Body::Reached: {
            auto &w = *body.AsReached();
            return Reached{Term(w.term), u.node(w.node), u.node(w.asker)};
        }
        case wire::Body::NONE:
            break;
    }
    u.expect(false);
    return VoteRequest{};
}

}  // namespace

Result<Message> decode_message(std::span<const std::uint8_t> bytes, std::uint32_t node_count) {
    auto decoded = proto::decode<wire::GroupMessage>(bytes, wire::GroupMessageIdentifier());
    if (!decoded) return decoded.take_status();
    Unpacker unpacker(node_count);
    Message message = unpack_body(unpacker, decoded->body);
    if (!unpacker.ok()) return Status(Code::corrupt, "a group message has a value out of range");
    return message;
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
