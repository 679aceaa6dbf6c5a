// SPDX-License-Identifier: Apache-2.0
// What this node's own agents and workers say.
#include <algorithm>
#include <csignal>

#include "elastic/member_state.h"

namespace dlrover::elastic {
namespace {

constexpr std::size_t max_exits = 4096;
constexpr std::size_t max_parities = 4096;      // a bound, too
constexpr std::size_t max_seals_per_rank = 64;  // a bound; the daemon has fewer slots

}  // namespace

void Member::State::on_ready(const LocalReady &m) {
    bool was_ready = local.ready;
    local.ready = m.ready;
    if (!m.ready && was_ready && local.running != GenerationId{} && !finish) {
        // An agent is gone, and its workers with it: nobody is left to tell how they ended.
        WorkerExit gone;
        gone.generation = local.running;
        gone.wait_status = SIGKILL;
        gone.error_text = "an agent of this node is gone";
        for (std::uint32_t first = 0; NodeIndex n : world ? world->nodes : std::vector<NodeIndex>{}) {
            if (is_self(n)) gone.rank = Rank(first);
            first += config.nodes[n.value()].ranks;
        }
        return on_exit(gone);
    }
    if (m.running != GenerationId{}) {
        if (m.running < promise.generation && !bugged(PlantedBug::accept_old_exit))
            out.push_back(StopWorkers{m.running, "a newer generation is in force or being prepared"});
        else
            local.running = m.running;
    } else if (m.ready && world && world->id == promise.generation && local.running != world->id &&
               born_world != world->id && contains(world->nodes, config.self)) {
        // Committed before the agents were there; else with the leader's next word.
        bool counted_on = now - counted_on_at < config.timings.leader_silence;
        if (role == Role::leader || counted_on) publish(*world);
    }
    tell_leader();
}

/// Also in a world that this daemon does not know yet: one before it, which has fallen, has told its agents.
void Member::State::on_exit(const WorkerExit &exit) {
    bool current = exit.generation == local.running || exit.generation == promise.generation ||
                   bugged(PlantedBug::accept_old_exit);
    bool known = std::any_of(local.exits.begin(), local.exits.end(), [&](const WorkerExit &e) {
        return e.rank == exit.rank && e.generation == exit.generation;
    });
    if (!current || known || local.exits.size() >= max_exits) return;
    local.exits.push_back(exit);
    if (bugged(PlantedBug::accept_old_exit)) local.exits.back().generation = local.running;
    tell_leader();
}

void Member::State::on_finished(const LocalFinished &m) {
    bool known = std::find(local.finished.begin(), local.finished.end(), m.rank) != local.finished.end();
    if (m.generation != local.running || known) return;
    local.finished.push_back(m.rank);
    if (local.finished.size() >= config.nodes[config.self.value()].ranks) tell_leader();
}

/// Sealed after the word that its step is void: a rank has skipped it.
bool Member::State::is_void_already(const Seal &seal) const {
    return void_told && seal.generation == void_told->first && seal.step < void_told->second &&
           (!void_after || seal.step > *void_after);
}

/// Of the promised generation, or what that goes on from, which is copied and fetched in it. A daemon before
/// this one may have fallen with the record of a world that its agents run already: what that goes on from is
/// not known here then.
bool Member::State::may_be_of_promised(const CheckpointId &id) const {
    if (id.generation == promise.generation) return true;
    bool known = world && world->id == promise.generation;
    if (known) return world->restore_step == id.step && world->restore_generation == id.generation;
    return local.running == promise.generation && local.running != GenerationId{};
}

void Member::State::on_sealed(const Seal &seal) {
    if (!may_be_of_promised({seal.generation, seal.step}) && !bugged(PlantedBug::accept_old_seal)) return;
    if (is_void_already(seal)) {
        out.push_back(StepsVoid{void_told->second, void_told->first, void_after});  // its slot is free again
        return;
    }
    auto of_rank = [&](const Seal &s) { return s.rank == seal.rank && s.generation == seal.generation; };
    bool asked = seal.to_storage;
    std::erase_if(local.seals, [&](const Seal &s) {
        bool same = of_rank(s) && s.step == seal.step;
        asked = asked || (same && s.to_storage);
        return same;
    });
    if (std::count_if(local.seals.begin(), local.seals.end(), of_rank) >=
        static_cast<std::ptrdiff_t>(max_seals_per_rank))
        local.seals.erase(std::find_if(local.seals.begin(), local.seals.end(), of_rank));
    local.seals.push_back(seal);
    local.seals.back().to_storage = asked;
    auto here = std::count_if(local.seals.begin(), local.seals.end(), [&](const Seal &s) {
        return s.step == seal.step && s.generation == seal.generation;
    });
    // A follower's next heartbeat tells the leader of single seals; a leader has no other way to hear its
    // own.
    std::ptrdiff_t ranks = std::max<std::ptrdiff_t>(config.nodes[config.self.value()].ranks, 1);
    bool in_sets = config.look_pause > Duration(0);  // thousands of nodes' single copies are too many words
    if (role == Role::leader || (in_sets ? here % ranks == 0 : here >= ranks)) tell_leader();
}

void Member::State::on_skipped(const LocalSkipped &m) {
    if (m.generation != local.running || m.generation != promise.generation) return;
    auto known = std::ranges::find(local.skips, m.skip.rank, &Skip::rank);
    if (known == local.skips.end())
        local.skips.push_back(m.skip);
    else if (known->step < m.skip.step)
        known->step = m.skip.step;
    else
        return;
    tell_leader();  // what others have sealed of that step may be all that keeps them from the next
}

void Member::State::on_parity(const Parity &parity) {
    if (!may_be_of_promised(parity.id)) return;
    bool known = std::ranges::any_of(local.parities, [&](const Parity &p) { return p.is_same(parity); });
    if (known || local.parities.size() >= max_parities) return;
    local.parities.push_back(parity);
    if (role == Role::leader) tell_leader();  // the others' next heartbeats do
}

void Member::State::on_objects(const LocalObjects &m) {
    local.seals = m.seals;
    local.parities = m.parities;
    tell_leader();
}

void Member::State::on_protection(bool works) {
    if (local.exposed == !works) return;
    local.exposed = !works;
    tell_leader();
}

void Member::State::on_signal(int signal) {
    if ((signal != SIGTERM && signal != SIGINT) || finish) return;
    local.signal = signal;
    if (role != Role::leader && !leader) {
        if (has_joined(config.self)) {
            evicted = true;
            return end(
                Finish{promise.term, 0, "this node's own step was told to end", goodput, NextRun::none});
        }
        // Nobody to ask: a signal that ends the job must not wait for an election.
        Finish f{promise.term, 128 + signal, "the job was told to end by signal " + std::to_string(signal),
                 goodput, NextRun::perhaps};
        drop_coming();
        return end(std::move(f));
    }
    tell_leader();
}

/// Told again with each report until another world is in force: leaders change.
void Member::State::on_rollback(const Rollback &word) {
    if (!world || word.from != world->id || finish) return;
    local.rollback = word;
    tell_leader();
}

/// Told with each report, since leaders change. The same report tells that it is gone.
void Member::State::on_damaged(const Damaged &damaged) {
    std::erase_if(local.seals, [&](const Seal &s) {
        return CheckpointId{s.generation, s.step} == damaged.id && s.rank == damaged.rank;
    });
    if (local.damaged && damaged.id < local.damaged->id) return;
    local.damaged = damaged;
    tell_leader();
}

void Member::State::on_durable(const CheckpointId &id) {
    if (!durable_here(id) || finish) return;
    if (role == Role::leader) return send_heartbeats();
    tell_leader();
}

std::optional<Duration> Member::State::near_job_end() const {
    if (!job_end || *job_end - now > config.timings.job_end_notice) return std::nullopt;
    return std::max(*job_end - now, Duration(0));
}

void Member::State::job_end_here(const std::optional<Duration> &in) {
    if (in.has_value() == job_end_told) return;
    job_end_told = in.has_value();
    out.push_back(JobEndsSoon{in});
}

/// Their slots may be reused.
void Member::State::drop_freed_seals(const StepFreed &freed) {
    std::erase_if(local.seals, [&](const Seal &s) { return freed.frees({s.generation, s.step}); });
    std::erase_if(local.parities, [&](const Parity &p) { return freed.frees(p.id); });
}

/// A node's clock goes on while its daemon is started again.
const NodeReport &Member::State::next_report() {
    local.number = std::max(local.number + 1, static_cast<std::uint64_t>(now.count()));
    return local;
}

void Member::State::tell_leader() {
    if (finish) return;
    if (role == Role::leader)
        on_report(config.self, next_report());
    else if (leader)
        send(*leader, Report{promise.term, next_report()});
}

}  // namespace dlrover::elastic
