// SPDX-License-Identifier: Apache-2.0
// The rules, seen from above: the checks know every node's keeper, the true objects and Slurm's job.
#include <algorithm>
#include <map>

#include "elastic/node_list.h"
#include "sim/simulator.h"

namespace dlrover::sim {

using namespace elastic;
using std::chrono::milliseconds;

void Simulator::fail(std::string text) const {
    throw Violation{std::move(text)};
}

void Simulator::check_acting(std::uint32_t node, Term term) {
    check(term >= acting_term_, "a leader acts after a later one has acted");
    check(term != acting_term_ || !acting_node_ || *acting_node_ == node, "two leaders act in one term");
    if (term > acting_term_) {
        const auto &keeper = nodes_[node].keeper;
        auto in_it = std::ranges::count_if(
            slurm_.nodes, [&](NodeIndex n) { return in_job(n.value()) && truly_counts(n.value()); });
        bool alone = in_it < 2 && keeper;
        for (std::size_t i = 0; alone && i < keeper->roster.firm_counted; ++i)
            alone = contains(keeper->removed, keeper->roster.counted[i]);
        check(alone || config_.batch_host != NodeIndex(node), "the batch host leads beside other nodes");
        auto roster = nodes_[node].member->view().roster;
        check(roster.added.size() >= firm_added_ && roster.counted.size() >= firm_counted_.size(),
              "a new leader does not know who has joined");
    }
    acting_term_ = term;
    acting_node_ = node;
}

void Simulator::check_send(std::uint32_t node, NodeIndex to, const Message &m) {
    const auto &keeper = nodes_[node].keeper;
    if (auto *v = std::get_if<VoteReply>(&m); v && v->granted)
        check(keeper && keeper->term >= v->term && (keeper->term > v->term || keeper->voted_for == to),
              "a vote is given before it is on record");
    if (auto *p = std::get_if<PrepareReply>(&m); p && p->accepted)
        check(keeper && keeper->generation >= p->generation,
              "a generation is accepted before it is on record");
    if (auto *h = std::get_if<Heartbeat>(&m); h && h->acting) check_acting(node, h->term);
    // An earlier leader's word is passed on, so that all keep that step.
    if (auto *h = std::get_if<Heartbeat>(&m); h && h->safe && h->safe == nodes_[node].member->view().safe)
        check_safe(node, *h->safe);
    if (auto *p = std::get_if<Prepare>(&m)) {
        check_acting(node, p->term);
        auto &nodes = prepared_.try_emplace(p->generation, p->world_nodes).first->second;
        check(nodes == p->world_nodes, "a generation's number is used twice");
    }
    if (auto *c = std::get_if<Commit>(&m)) {
        check_acting(node, c->term);
        if (!worlds_.contains(c->world.id)) check_world(node, c->world);
        check(worlds_.at(c->world.id) == c->world, "two worlds have one generation");
    }
}

/// A world is committed: seen once, before anybody is told.
void Simulator::check_world(std::uint32_t decider, const World &world) {
    if (newest_world_) check(world.id > newest_world_->id, "a generation goes back");
    auto recorded = [&](NodeIndex n) {
        const auto &keeper = nodes_[n.value()].keeper;
        return keeper && keeper->generation >= world.id;
    };
    auto is_removed = [&](NodeIndex n) { return !in_job(n.value()) || n == config_.batch_host; };
    for (NodeIndex n : world.nodes) check(truly_counts(n.value()), "a node takes part that is not counted");
    for (NodeIndex n : world.nodes)
        check(recorded(n), "a world is in force before all its nodes have it on record");
    std::size_t all = 0, have = 0, before = 0, before_have = 0;
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
        NodeIndex n(i);
        if (!truly_counts(i)) continue;
        have += recorded(n);
        all += !is_removed(n) || recorded(n);
        if (!newest_world_) continue;
        const auto &old = newest_world_->nodes;
        if (std::find(old.begin(), old.end(), n) == old.end()) continue;
        before += !is_removed(n) || recorded(n);
        before_have += recorded(n);
    }
    check(have * 2 > all, "a world is in force without a majority of the members");
    check(before == 0 || before_have * 2 > before,
          "a world is in force without a majority of the world before");
    check(world.nodes.size() >= config_.min_nodes && world.nodes.size() <= config_.max_nodes &&
              world.nodes.size() % config_.node_unit == 0,
          "a world of a size that is not allowed");
    check_restore(world);
    check_suspects(decider, world);
    check_rollback(decider, world);
    check_damage(world);
    if (!newest_world_) check_kept(world);
    check_looked_at(world);
    check_partners(world);
    check_sources(world);
    check_safe_kept(world);
    worlds_[world.id] = world;
    newest_world_ = world;
    plan_restore_damage(world);
}

/// A run goes on from the checkpoint on storage as long as it has none of its own, and stands above it.
void Simulator::check_stored(const World &world) {
    check(world.id.term >= storage_.next_term, "a generation is not above the checkpoints on storage");
    check(world.restore_step || !storage_.newest, "the checkpoint on storage is passed over");
    if (world.stored_world_size == 0) return;
    bool same = storage_.newest && world.restore_step == storage_.newest->step &&
                world.restore_generation == storage_.newest->generation &&
                world.stored_world_size == storage_.world_size;
    check(same, "a restore from a checkpoint that is not on storage");
}

/// The newest one that the leader knows, or somebody whose answer it has. What was known to those alone that
/// are gone nobody else has begun.
const World *Simulator::world_known_before(std::uint32_t decider, const World &world) const {
    const World *newest = nullptr;
    auto take = [&](const std::optional<World> &known) {
        if (known && known->id < world.id && (!newest || newest->id < known->id)) newest = &*known;
    };
    for (std::uint32_t i = 0; i < nodes_.size(); ++i)
        if (nodes_[i].keeper && (i == decider || counted_on(i, world.id))) take(nodes_[i].keeper->world);
    return newest;
}

/// Storage always has an older step here: what failures have come back from twice is not tried again, nor
/// what is of its line.
void Simulator::check_suspects(std::uint32_t decider, const World &world) const {
    check(world.suspects.size() <= max_suspects, "too many steps are suspect");
    const World *before = world_known_before(decider, world);
    for (const Suspect &s : before ? before->suspects : std::vector<Suspect>{})
        check(covers(world.suspects, s.id), "a suspect step is forgotten");
    if (!world.suspects.empty())
        check(world.suspects.back().back_to < world.suspects.back().id.step, "a step back that is none");
    if (!world.restore_step || !storage_.newest) return;
    CheckpointId from{world.restore_generation, *world.restore_step};
    check(!covers(world.suspects, from), "a world goes on from a suspect step");
    TrainStep blamed = *world.restore_step;
    for (const Suspect &s : world.suspects)
        if (s.signature == world.strikes.signature && blamed <= s.id.step)
            blamed = std::min(blamed, s.back_to);
    check(world.strikes.count < 2 || blamed <= storage_.newest->step,
          "a world goes on from a step that two failures have come back from");
}

/// Only where a person wants it of the world in force, and not to a newer step.
void Simulator::check_rollback(std::uint32_t decider, const World &world) const {
    if (world.suspects.empty() || !world.suspects.back().by_person) return;
    const Suspect &last = world.suspects.back();
    if (last.since != world.id) return;
    // Whether a world that nobody else has on record came into force is not known: it may be done again.
    const World *before = world_known_before(decider, world);
    const auto &own = nodes_[decider].keeper->world;
    GenerationId first = own ? std::min(own->id, before->id) : before ? before->id : world.id;
    bool wanted = false, found = false;
    for (const auto &[of, steps] : rollbacks_) {
        if (of < first || of >= world.id) continue;
        wanted = true;
        found = found || std::ranges::any_of(steps, [&](TrainStep to) { return last.back_to <= to; });
    }
    check(wanted, "a rollback that nobody wanted");
    check(found && world.restore_step == last.back_to, "a rollback to a newer step than was wanted");
}

void Simulator::check_restore(const World &world) {
    struct Found {
        std::uint32_t size = 0;
        std::set<Rank> ranks;
        std::map<std::vector<Rank>, std::set<std::uint32_t>> parities;  ///< by row
        bool has(Rank rank) const {
            return ranks.contains(rank) ||
                   std::any_of(parities.begin(), parities.end(), [&](const auto &row) {
                       auto held = static_cast<std::size_t>(std::count_if(
                           row.first.begin(), row.first.end(), [&](Rank r) { return ranks.contains(r); }));
                       bool its = std::find(row.first.begin(), row.first.end(), rank) != row.first.end();
                       return its && held + row.second.size() >= row.first.size();
                   });
        }
    };
    std::map<std::pair<TrainStep, GenerationId>, Found> sealed, near;
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
        bool in_world = std::find(world.nodes.begin(), world.nodes.end(), NodeIndex(i)) != world.nodes.end();
        // A node that has died after it was asked may still be counted on.
        bool gone = nodes_[i].dead && now_ - nodes_[i].died_at > milliseconds(4000);
        bool first = next_run_begun_ && !newest_world_;  // check_kept() looks
        for (const HeldParity &p : gone ? std::vector<HeldParity>{} : nodes_[i].parities) {
            if (!p.whole) continue;
            auto add = [&](auto &to) {
                auto &entry = to[{p.parity.id.step, p.parity.id.generation}];
                entry.size = p.parity.world_size;
                entry.parities[p.parity.ranks].insert(p.parity.index);
            };
            add(sealed);
            Seal like;
            like.step = p.parity.id.step;
            like.generation = p.parity.id.generation;
            bool trusted = !covers(world.suspects, p.parity.id);
            if (counted_on(i, world.id) && in_force(like) && trusted && !first && !nodes_[i].dead) add(near);
        }
        for (const Seal &s : gone ? std::vector<Seal>{} : nodes_[i].objects) {
            auto add = [&](auto &to) {
                auto &entry = to[{s.step, s.generation}];
                entry.size = s.world_size;
                entry.ranks.insert(s.rank);
            };
            add(sealed);
            bool known = config_.copies > 0 ? counted_on(i, world.id) && in_force(s) : in_world;
            bool trusted = !covers(world.suspects, {s.generation, s.step});
            if (known && trusted && !first && !nodes_[i].dead) add(near);
        }
    }
    auto complete = [](const auto &entry) {
        for (std::uint32_t r = 0; r < entry.second.size; ++r)
            if (!entry.second.has(Rank(r))) return false;
        return true;
    };
    if (options_.trace && world.restore_step)
        trace("restore of step " + std::to_string(world.restore_step->value()) + " of " +
              to_string(world.restore_generation));
    check_stored(world);
    if (world.restore_step && world.stored_world_size == 0) {
        auto it = sealed.find({*world.restore_step, world.restore_generation});
        for (std::uint32_t r = 0; options_.trace && it != sealed.end() && r < it->second.size; ++r)
            if (!it->second.has(Rank(r))) trace("no node holds it for rank " + std::to_string(r));
        check(it != sealed.end() && complete(*it), "a restore from a step that is not complete");
    }
    for (const auto &entry : near) {
        if (options_.trace && complete(entry))
            trace("complete: step " + std::to_string(entry.first.first.value()) + " of " +
                  to_string(entry.first.second));
        if (complete(entry))
            check(world.restore_step && *world.restore_step >= entry.first.first,
                  "a restore passes over a newer complete step");
    }
}

/// The newest step that all ranks have sealed, or will seal, is never given up. (An older one may be: it is
/// partly dropped already where a node has heard more than the leader. One that has lost an object to damage,
/// and is nowhere else, is as good as one that a rank has not sealed. With parities it may become complete
/// again after all have said that they do not hold it: by a sum that had the object before, and becomes whole
/// only then.)
void Simulator::check_void(const StepsVoid &steps) {
    Run &run = runs_[steps.generation];
    bool meant = run.complete && run.complete > steps.complete && *run.complete < steps.below;
    CheckpointId id{steps.generation, run.complete.value_or(TrainStep(0))};
    check(!meant || (has_lost_a_part(id) && (codes() || !truly_safe(id, 1, true))),
          "the newest complete step is given up");
    run.given_up = std::max(run.given_up, steps.below);
}

void Simulator::check_sealed(const Seal &seal) {
    Run &run = runs_[seal.generation];
    if (++run.sealed[seal.step] < seal.world_size) return;
    // What the run goes on from is complete, and may be saved again.
    check(seal.step >= run.given_up || seal.step <= run.complete || seal.step == run.world.restore_step,
          "a step that was given up becomes complete");
    run.complete = std::max(run.complete, std::optional(seal.step));
}

void Simulator::check_asked(std::uint32_t node, const CheckpointId &id) {
    check(wanted_on_storage(id.step), "a step is to go to storage that nobody wants there");
    Run &run = runs_[id.generation];
    check(run.sealed[id.step] >= run.world_size, "a step is to go to storage that is not complete");
    nodes_[node].asked = id;
}

/// Who hears that a step is complete hears in the same moment that it is wanted on storage.
void Simulator::check_heard(const Node &node, const std::vector<Action> &actions) const {
    for (const Action &action : actions) {
        auto *complete = std::get_if<StepComplete>(&action);
        if (complete == nullptr || !wanted_on_storage(complete->step)) continue;
        check(node.asked >= CheckpointId{complete->generation, complete->step},
              "a node does not hear that a complete step is wanted on storage");
    }
}

void Simulator::check_publish(std::uint32_t node, const World &world) {
    const Node &n = nodes_[node];
    check(world.id >= n.published, "a node is told an older generation");
    if (!worlds_.contains(world.id)) check_world(node, world);
    check(worlds_.at(world.id) == world, "two worlds have one generation");
}

void Simulator::check_store(std::uint32_t node, const Promise &promise) {
    for (NodeIndex n : promise.removed)
        check(!in_job(n.value()), "a node is given up that Slurm has in the job");
    check_roster(node, promise);
}

void Simulator::check_ask(std::uint32_t node, const AskSlurm &ask) {
    Node &n = nodes_[node];
    bool leads = n.member->view().leader == NodeIndex(node);
    if (leads) check_acting(node, n.member->view().term);
    check_taken_out(node, ask);
    if (ask.what == AskSlurm::What::requeue && slurm_.requeued_at)
        check(now_ - *slurm_.requeued_at < milliseconds(10) ||
                  (n.job_read > now_ - milliseconds(50) && now_ - *slurm_.requeued_at < milliseconds(3000)),
              "Slurm is asked for a requeue again");
    if (ask.what == AskSlurm::What::leave_behind)
        check(leads || ask.nodes == std::vector{*config_.batch_host},
              "one that does not lead leaves others behind");
    if (ask.what != AskSlurm::What::shrink_to) return;
    for (NodeIndex survivor : ask.nodes)
        check(in_groups_job(survivor.value()), "Slurm is told of a node that is not of the job");
    bool read = n.job_read >= now_ - milliseconds(50) && n.job_read >= Time(0);
    check(leads || read, "a side without a leader asks Slurm without reading the job");
    // An answer may take a while: what the job was when it was read.
    Time known = read ? std::min(n.job_seen, now_ - milliseconds(50)) : now_ - milliseconds(50);
    bool covers_all = true;
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
        if (!in_groups_job(i)) continue;
        bool survives = std::find(ask.nodes.begin(), ask.nodes.end(), NodeIndex(i)) != ask.nodes.end();
        auto gone = slurm_.removed_at.find(NodeIndex(i));
        if (!survives) covers_all = covers_all && gone != slurm_.removed_at.end() && gone->second < known;
    }
    check(!covers_all, "Slurm is asked twice for one failure");
    auto counted = [&](NodeIndex i) {
        return truly_counts(i.value()) && (!contains(slurm_.left, i) || i == config_.batch_host);
    };
    auto present = std::ranges::count_if(slurm_.nodes, counted),
         here = std::ranges::count_if(ask.nodes, counted);
    auto joined = std::ranges::count_if(
        firm_counted_, [&](NodeIndex i) { return !in_groups_job(i.value()) && in_job(i.value()); });
    check(leads || (here + joined) * 2 >= present + joined, "a minority takes the others out of the job");
}

/// Nothing that a worker of an old generation says may open an incident.
void Simulator::check_note(const Note &note) {
    if (note.kind != Note::Kind::worker_failed || !note.rank) return;
    if (real_exits_.contains({note.generation, note.rank->value()})) return;
    if (note.node && (!nodes_[note.node->value()].agent || nodes_[note.node->value()].dead)) return;
    fail("a worker of an old generation was listened to");
}

void Simulator::check_one_world(const GenerationId &generation) {
    for (const auto &[id, run] : runs_)
        check(id == generation || run.world.nodes.empty() || !run.ticking || !whole(run),
              "two worlds run at the same time");
    check(!slurm_.requeued_at || now_ < slurm_.next_run_at, "a world runs beside the job's next run");
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
        const Node &n = nodes_[i];
        check(n.running == GenerationId{} || n.frozen_until + milliseconds(50) > now_ || n.dead ||
                  n.lease_until + milliseconds(10) >= now_,
              "workers run without a lease");
    }
}

/// A world runs that somebody else leads.
bool Simulator::others_act(std::uint32_t node) const {
    if (!newest_world_ || !acting_node_ || *acting_node_ == node || !runs_.contains(newest_world_->id))
        return false;
    const Node &head = nodes_[*acting_node_];
    const Run &run = runs_.at(newest_world_->id);
    return head.member && !head.dead && !head.ended && head.frozen_until <= now_ && run.ticking && whole(run);
}

void Simulator::check_requeue(std::uint32_t node) const {
    check(!others_act(node), "a requeue ends the world of others");
}

/// Where srun and the job's script run: what ends there ends the job, unless it is said that others go on.
void Simulator::check_job_end(std::uint32_t node, const End &end) const {
    if (config_.batch_host != NodeIndex(node) || end.evicted || !slurm_.running || signalled_) return;
    // A leader that has just begun may be the one that ends a job whose ranks have all finished.
    auto run = newest_world_ ? runs_.find(newest_world_->id) : runs_.end();
    bool finished = run != runs_.end() && std::ranges::all_of(run->second.world.nodes, [&](NodeIndex n) {
                        return run->second.finished[n.value()];
                    });
    check(finished || !others_act(node), "the batch host ends the job in which others go on");
}

std::vector<std::uint32_t> Simulator::larger_side() const {
    std::vector<std::uint32_t> side;
    for (std::uint32_t i = 0; i < nodes_.size(); ++i)
        if (nodes_[i].side == 2 && !nodes_[i].dead && in_job(i)) side.push_back(i);
    return side;
}

/// Where it has a majority of the nodes and of the world, and enough of them: without Slurm's word it has a
/// world by now.
void Simulator::check_larger_side() const {
    auto side = larger_side();
    if (!faults_.empty() || config_.storage || !slurm_.running || side.empty()) return;
    auto left = static_cast<std::size_t>(std::ranges::count_if(
        world_before_cut_, [&](NodeIndex n) { return std::ranges::find(side, n.value()) != side.end(); }));
    std::size_t usable = std::min<std::size_t>(side.size(), config_.max_nodes);
    usable -= usable % config_.node_unit;
    bool over = nodes_[side.front()].ended;
    // A node that was given back counts until all know of it.
    bool is_less = scaling() && side.size() * 2 <= nodes_.size();
    if (over || is_less || usable < config_.min_nodes || left * 2 <= world_before_cut_.size()) return;
    bool goes_on = std::ranges::all_of(newest_world_->nodes, [&](NodeIndex n) {
        const Node &node = nodes_[n.value()];
        return node.side == 2 && node.lease_until > now_ && node.published == newest_world_->id;
    });
    check(goes_on, "a majority that does not hear Slurm has no world");
}

bool Simulator::settled(std::string *state) const {
    if (!slurm_.running) {
        *state = "requeued";
        return !next_run_planned_;
    }
    std::size_t ended = 0, alive = 0;
    int code = 0;
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
        // A node that was never counted ends by itself, when it hears nobody.
        if (nodes_[i].dead || !in_job(i) || !truly_counts(i)) continue;
        ++alive;
        ended += nodes_[i].ended;
        if (nodes_[i].ended) code = nodes_[i].exit_code;
    }
    if (alive == ended) {
        *state = "ended " + std::to_string(code);
        return true;
    }
    *state = "running";
    return steps_since_heal_ >= 3 && safe_again() && grown_back() && scaled() && newest_world_ &&
           runs_.contains(newest_world_->id) && whole(runs_.at(newest_world_->id));
}

}  // namespace dlrover::sim
