// SPDX-License-Identifier: Apache-2.0
// One incident, one first cause, however many ranks end.
#include <sys/wait.h>

#include <algorithm>

#include "elastic/member_state.h"

namespace dlrover::elastic {
namespace {

constexpr std::size_t most_notes = 256;  ///< of one incident's exits: all ranks may end at once

std::string milliseconds(Duration d) {
    return std::to_string(d.count() / 1000) + " ms";
}

/// Killed from outside: says nothing about the program.
bool killed(const WorkerExit &e) {
    if (e.oom || !WIFSIGNALED(e.wait_status)) return false;
    return WTERMSIG(e.wait_status) == 9 || WTERMSIG(e.wait_status) == 15;
}

}  // namespace

void Member::State::open_incident(std::string cause) {
    if (incident && incident->committed)
        note(Note::Kind::incident_closed, "the next failure came before the first step: " + incident->cause);
    incident.emplace();
    incident->opened = now;
    incident->generation = world->id;
    incident->cause = std::move(cause);
    if (meter) meter->fail(now);
    Note n;
    n.kind = Note::Kind::incident_opened;
    n.generation = world->id;
    n.text = incident->cause;
    out.push_back(std::move(n));
}

void Member::State::on_exits(NodeIndex from, const NodeReport &report) {
    if (!world || report.exits.empty()) return;
    bool fresh = false;
    for (const WorkerExit &e : report.exits) {
        if (e.generation != world->id) continue;
        bool open = incident && incident->generation == world->id;
        if (open && incident->ended.contains(e.rank)) continue;
        std::string what;
        if (!open || incident->exits.size() < most_notes)
            what = "rank " + std::to_string(e.rank.value()) + " on " + names({from}) + " " + describe_exit(e);
        if (!open) {
            open_incident(what);
            fresh = true;
        }
        incident->add(e, from);
        if (incident->exits.size() > most_notes) continue;
        Note n;
        n.kind = Note::Kind::worker_failed;
        n.generation = world->id;
        n.node = from;
        n.rank = e.rank;
        n.text = what;
        out.push_back(std::move(n));
    }
    if (fresh) decide_restart();
}

void Member::State::decide_restart() {
    const WorkerExit &cause = incident->exits[first_cause(incident->exits, config.timings.incident_window)];
    bool stepped = killed(cause);
    for (const Peer &p : peers)
        for (const RankProgress &r : p.report.progress) stepped = stepped || r.steps_done > 0;
    // What is damaged in memory is gone: the next world goes on from something else, or the group ends.
    bool damage = std::ranges::any_of(peers, [](const Peer &p) { return p.report.damaged.has_value(); });
    auto verdict = budget.on_failure(cause.signature, stepped, damage || may_go_back());
    incident->only_further_back = budget.hopeless();
    if (verdict != RestartBudget::Verdict::restart) {
        incident->giving_up = verdict;  // the first cause may not have arrived yet
        return;
    }
    if (!preparing) propose(incident->cause, true);
}

std::string Member::State::describe_cause(const Incident &i) const {
    if (i.exits.empty()) return i.cause;
    std::size_t at = first_cause(i.exits, config.timings.incident_window);
    return "rank " + std::to_string(i.exits[at].rank.value()) + " on " + names({i.exit_nodes[at]}) + " " +
           describe_exit(i.exits[at]);
}

void Member::State::give_up() {
    const WorkerExit &cause = incident->exits[first_cause(incident->exits, config.timings.incident_window)];
    std::string what = describe_cause(*incident);
    if (*incident->giving_up == RestartBudget::Verdict::hopeless)
        what += " at the same place " + std::to_string(RestartBudget::hopeless_restarts + 1) +
                " times without a training step or a new checkpoint: restarting it is no use";
    else
        what += "; " + std::to_string(config.max_restarts) +
                " restarts without a new complete checkpoint are the limit (--dlrover-max-restarts)";
    finish_group(exit_code_of(cause.wait_status), std::move(what));
}

void Member::State::close_incident(Duration since_first_step) {
    const Incident &i = *incident;
    Duration all = std::max(now - since_first_step - i.opened, *i.committed - i.opened);
    Note n;
    n.kind = Note::Kind::incident_closed;
    n.generation = world->id;
    n.duration = all;
    n.text = "first cause: " + describe_cause(i) + "; new world after " +
             milliseconds(*i.committed - i.opened) + ", first step after " + milliseconds(all);
    if (!i.exits.empty()) {
        std::size_t at = first_cause(i.exits, config.timings.incident_window);
        n.rank = i.exits[at].rank;
        n.node = i.exit_nodes[at];
    }
    out.push_back(std::move(n));
    incident.reset();
}

}  // namespace dlrover::elastic
