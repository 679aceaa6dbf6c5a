// SPDX-License-Identifier: Apache-2.0
// Agents and workers: they obey StopWorkers and their lease; a world advances only while all its ranks run
// and reach each other.
#include <algorithm>

#include "sim/simulator.h"

namespace dlrover::sim {

using namespace elastic;
using std::chrono::milliseconds;

namespace {

/// Without a free one a save is skipped. As many as there are by default, and where memory is short. With
/// copies two are taken by the safe step and the next, so that saves wait for the copies.
std::ptrdiff_t slots_of(std::uint64_t seed, const GroupConfig &config) {
    return seed % 7 < 3 && config.copies == 0 ? 2 : 3;
}

}  // namespace

void Simulator::publish(std::uint32_t node, const World &world) {
    Node &n = nodes_[node];
    n.published = world.id;
    // As an arena does, but for one planted bug: what lies after the step that this world goes on from is
    // void, and what was sealed of that step later.
    if (options_.bug != PlantedBug::restore_mixes_generations) {
        auto is_void = [&](const CheckpointId &id) {
            if (id.generation >= world.id) return false;
            return !world.restore_step || id.step > *world.restore_step ||
                   (id.step == *world.restore_step && id.generation > world.restore_generation);
        };
        std::erase_if(n.objects, [&](const Seal &s) { return is_void({s.generation, s.step}); });
        std::erase_if(n.parities, [&](const HeldParity &p) { return is_void(p.parity.id); });
    }
    push(now_, Kind::objects, node);
    begin_copies(node, world);
    auto it = std::find(world.nodes.begin(), world.nodes.end(), NodeIndex(node));
    if (it == world.nodes.end() || !n.agent || n.running == world.id) return;
    Payload p;
    p.generation = world.id;
    push(now_ + Duration(random_.between(31000, 60000)), Kind::start_workers, node, keep(std::move(p)));
    n.lease_until = std::max(n.lease_until, now_ + config_.timings.agent_lease);
}

void Simulator::start_workers(std::uint32_t node, const GenerationId &generation) {
    Node &n = nodes_[node];
    if (n.dead || n.ended || !n.agent || n.stopping >= generation || n.started >= generation) return;
    halt_workers(node);
    const World &world = worlds_.at(generation);
    n.started = generation;
    n.first_rank = first_rank(world, node).value_or(0);
    // It counts from the daemon's word: a node may have hung between that and the start.
    if (n.lease_until < now_ && options_.bug != PlantedBug::agent_ignores_lease)
        return lose_lease(node, generation);
    n.running = generation;
    push(n.lease_until, Kind::lease, node);
    Run &run = runs_[generation];
    if (run.world.nodes.empty()) {
        run.world = world;
        for (NodeIndex w : world.nodes) run.world_size += config_.nodes[w.value()].ranks;
        run.step = world.restore_step ? world.restore_step->value() : 0;
        run.finished.assign(nodes_.size(), false);
    }
    ++run.running;
    if (n.copies.fetching.empty()) check_restored(node, world);
    if (hopeless_ && node == world.nodes.front().value()) return fail_worker(node, 3 << 8, 77);
    if (poisons(world) && node == world.nodes.back().value()) return fail_worker(node, 3 << 8, 88);
    if (run.running < world.nodes.size() || run.ticking) return;
    run.ticking = true;
    check_one_world(generation);
    if (options_.seed % 4 == 2 && world.restore_step) save_again(world);
    Payload p;
    p.generation = generation;
    push(now_ + milliseconds(100), Kind::step, node, keep(std::move(p)));
}

/// The first step of this run that a world goes on from, until one has gone further back.
bool Simulator::poisons(const World &world) {
    if (!poison_planned_ || !world.restore_step) return false;
    CheckpointId from{world.restore_generation, *world.restore_step};
    if (!poison_ && world.stored_world_size == 0) poison_ = from;
    return poison_ == from;
}

/// Some programs save the step that they have just been restored from, before they take another.
void Simulator::save_again(const World &world) {
    for (NodeIndex w : world.nodes) {
        Payload seal;
        seal.generation = world.id;
        seal.number = world.restore_step->value();
        push(now_ + Duration(random_.between(1000, 90000)), Kind::seal, w.value(), keep(std::move(seal)));
    }
}

void Simulator::halt_workers(std::uint32_t node) {
    Node &n = nodes_[node];
    if (n.running == GenerationId{}) return;
    --runs_[n.running].running;
    n.running = {};
}

void Simulator::stop_workers(std::uint32_t node, const GenerationId &generation) {
    Node &n = nodes_[node];
    if (n.running <= generation) {
        GenerationId old = n.running;
        halt_workers(node);
        // What a process that is being ended says must not count.
        if (old != GenerationId{} && n.member && random_.chance(20))
            feed(node, LocalExit{WorkerExit{old, Rank(n.first_rank), 15, now_.count(), 5, false, ""}});
        if (old != GenerationId{} && n.member && random_.chance(30))
            on_seal(node, old, runs_[old].step + 1, false);
    }
    if (n.member && !n.dead) feed(node, LocalStopped{generation});
}

void Simulator::fail_worker(std::uint32_t node, int status, std::uint64_t signature) {
    Node &n = nodes_[node];
    if (n.running == GenerationId{}) return;
    GenerationId generation = n.running;
    real_exits_.insert({generation, n.first_rank});
    // One of its workers; the node's others hang until they are stopped.
    --runs_[generation].running;
    n.running = {};
    if (!n.member) {
        n.pending_exit = generation;
        return;
    }
    feed(node,
         LocalExit{WorkerExit{generation, Rank(n.first_rank), status, now_.count(), signature, false, ""}});
}

void Simulator::on_lease(std::uint32_t node) {
    Node &n = nodes_[node];
    if (n.dead || n.running == GenerationId{}) return;
    if (n.lease_until > now_) return push(n.lease_until, Kind::lease, node);
    if (options_.bug == PlantedBug::agent_ignores_lease) return;
    lose_lease(node, n.running);
}

void Simulator::lose_lease(std::uint32_t node, GenerationId generation) {
    Node &n = nodes_[node];
    trace("node " + std::to_string(node) + " lease over");
    halt_workers(node);
    real_exits_.insert({generation, n.first_rank});
    if (n.member)
        feed(node, LocalExit{WorkerExit{generation, Rank(n.first_rank), 9, now_.count(), 9, false, "lease"}});
    else
        n.pending_exit = generation;
}

bool Simulator::whole(const Run &run) const {
    if (run.world.nodes.empty() || run.running < run.world.nodes.size()) return false;
    std::uint32_t first = run.world.nodes.front().value();
    for (NodeIndex w : run.world.nodes) {
        const Node &n = nodes_[w.value()];
        if (n.side != nodes_[first].side || n.frozen_until > now_ || !n.copies.fetching.empty()) return false;
    }
    return true;
}

void Simulator::on_step(const GenerationId &generation) {
    Run &run = runs_[generation];
    if (run.running == 0 || run.running < run.world.nodes.size()) {
        run.ticking = false;  // a rank is gone: this world never advances again
        return;
    }
    Payload p;
    p.generation = generation;
    std::uint32_t first = run.world.nodes.front().value();
    if (whole(run)) {
        check_one_world(generation);
        ++run.step;
        ++run.steps_done;
        if (healed_at_ != Time(0)) ++steps_since_heal_;
        if (torn_ > 0) {
            --torn_;
            std::uint32_t hit = run.world.nodes[random_.below(run.world.nodes.size())].value();
            push(now_ + milliseconds(random_.between(5, 110)), Kind::crash_worker, hit);
        }
        for (NodeIndex w : run.world.nodes) {
            Payload seal;
            seal.generation = generation;
            seal.number = run.step;
            push(now_ + Duration(random_.between(1000, 120000)), Kind::seal, w.value(),
                 keep(std::move(seal)));
        }
    }
    push(now_ + milliseconds(350), Kind::step, first, keep(std::move(p)));
}

bool Simulator::wanted_on_storage(TrainStep step) {
    return step.value() % 3 == 0;
}

/// Where there are copies, also for what its ranks go on from.
bool Simulator::has_slot(const Node &n, std::uint32_t ranks, const GenerationId &generation) const {
    auto mine = std::count_if(n.objects.begin(), n.objects.end(), [&](const Seal &s) {
        bool own = s.rank.value() >= n.first_rank && s.rank.value() < n.first_rank + ranks;
        return config_.copies > 0 ? own : s.generation == generation;
    });
    return mine < slots_of(options_.seed, config_) * ranks;
}

void Simulator::on_seal(std::uint32_t node, const GenerationId &generation, std::uint64_t step,
                        bool accepted) {
    Node &n = nodes_[node];
    if (n.dead || !n.member || n.ended) return;
    // A worker that is gone seals nothing; one that is being stopped may try.
    if (accepted && n.running != generation) return;
    if (accepted && n.stopping >= generation) accepted = false;
    if (accepted && !n.copies.fetching.empty()) return;  // it has not begun
    bool slot_free = has_slot(n, config_.nodes[node].ranks, generation);
    const Run &run = runs_[generation];
    bool last = accepted && step >= last_step_;
    for (std::uint32_t r = 0; r < config_.nodes[node].ranks && n.member && (slot_free || !accepted); ++r) {
        if (n.stopping >= generation) accepted = false;  // by what the seal before it has led to
        Rank rank(n.first_rank + r);
        bool asks =
            wanted_on_storage(TrainStep(step)) && run.world_size > 0 && step % run.world_size == rank.value();
        Seal seal{TrainStep(step), rank, run.world_size, generation, asks};
        if (options_.trace)
            trace("node " + std::to_string(node) + (accepted ? " seals" : " is refused") + " step " +
                  std::to_string(step) + " of " + to_string(generation) + " of rank " +
                  std::to_string(rank.value()));
        if (accepted) {
            n.objects.push_back(seal);
            check_sealed(seal);
        }
        feed(node, LocalSealed{seal});
    }
    for (std::uint32_t r = 0; r < config_.nodes[node].ranks && n.member && accepted && !slot_free; ++r)
        feed(node, LocalSkipped{generation, {Rank(n.first_rank + r), TrainStep(step)}});
    if (!accepted || !n.member) return;
    RankProgress progress;
    progress.rank = Rank(n.first_rank);
    progress.step = TrainStep(step);
    progress.steps_done = run.steps_done;
    if (n.first_rank == 0) feed(node, LocalProgress{{progress}});
    if (!last || runs_[generation].finished[node]) return;
    runs_[generation].finished[node] = true;
    for (std::uint32_t r = 0; r < config_.nodes[node].ranks && n.member; ++r)
        feed(node, LocalFinished{generation, Rank(n.first_rank + r)});
}

}  // namespace dlrover::sim
