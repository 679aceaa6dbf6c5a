// SPDX-License-Identifier: Apache-2.0
// Slurm as far as a group sees it: a shrink is a compare-and-swap on the job's nodes; the batch host stays.
#include <algorithm>

#include "elastic/node_list.h"
#include "sim/simulator.h"

namespace dlrover::sim {

using namespace elastic;
using std::chrono::milliseconds;

bool Simulator::slurm_reaches(std::uint32_t node) const {
    bool away = slurm_.unreachable_side != 0 && nodes_[node].side == slurm_.unreachable_side;
    return slurm_.mode != Slurm::Mode::unreachable && !away;
}

/// An administrator may forbid it in between.
bool Simulator::can_shrink() {
    if (!options_.no_shrink) return true;
    if (!slurm_.can_shrink) slurm_.can_shrink = marks_random_.chance(50);
    return *slurm_.can_shrink;
}

void Simulator::end_processes(std::uint32_t node) {
    push(now_ + milliseconds(random_.between(1, 500)), Kind::kill_removed, node);
}

/// A node that is not reached keeps its processes until it is. The job's next run does not wait for one that
/// who asks takes out of the job first; for any other of its nodes Slurm does (COMPLETING), until it gives
/// that up (SlurmdTimeout: five times without_slurm by default, here twice).
bool Simulator::requeue(std::uint32_t node, const std::vector<NodeIndex> &excluded) {
    check_requeue(node);
    slurm_.running = false;
    ++slurm_.requeues;
    slurm_.requeued_at = now_;
    next_run_planned_ = plan_next_run();
    Duration wait(0);
    for (NodeIndex n : slurm_.nodes) {
        bool stays = !contains(excluded, n) || n == config_.batch_host;  // Slurm keeps that one
        if (stays && !slurm_reaches(n.value())) wait = config_.timings.without_slurm * 2;
    }
    slurm_.next_run_at = now_ + wait + next_run_comes;
    for (Companion &c : slurm_.companions) end_companion(c, true);
    for (std::uint32_t i = 0; i < nodes_.size(); ++i)
        if (slurm_reaches(i))
            end_processes(i);
        else
            slurm_.to_end.insert(i);
    return true;
}

/// True when carried out.
bool Simulator::slurm_does(std::uint32_t node, const AskSlurm &ask) {
    if (!slurm_.running) return false;
    bool is_out = !in_job(node);
    if (ask.what == AskSlurm::What::requeue) return !is_out && requeue(node, ask.nodes);
    if (ask.what == AskSlurm::What::leave_behind) {
        bool for_host =
            config_.batch_host && ask.nodes == std::vector{*config_.batch_host};  // once is enough
        bool written_over = options_.no_shrink && !for_host && marks_random_.chance(20);
        if (!written_over) add_all(slurm_.left, ask.nodes);
        return true;
    }
    if (ask.what != AskSlurm::What::shrink_to) return slurm_does_companions(node, ask);
    auto present = [&](NodeIndex n) {
        return std::find(slurm_.nodes.begin(), slurm_.nodes.end(), n) != slurm_.nodes.end();
    };
    if (!std::all_of(ask.nodes.begin(), ask.nodes.end(), present)) return false;
    if (config_.batch_host &&
        std::find(ask.nodes.begin(), ask.nodes.end(), *config_.batch_host) == ask.nodes.end())
        return false;
    for (NodeIndex n : slurm_.nodes) {
        if (std::find(ask.nodes.begin(), ask.nodes.end(), n) != ask.nodes.end()) continue;
        slurm_.removed_at[n] = now_;
        // A node that Slurm does not reach keeps its processes for now.
        if (!nodes_[n.value()].dead && nodes_[n.value()].side == nodes_[node].side && random_.chance(50))
            push(now_ + milliseconds(random_.between(1, 1000)), Kind::kill_removed, n.value());
    }
    if (slurm_.can_shrink && slurm_.nodes != ask.nodes) slurm_.can_shrink = false;
    slurm_.nodes = ask.nodes;
    for (Companion &c : slurm_.companions) {
        bool stays = c.node && std::ranges::find(ask.nodes, NodeIndex(*c.node)) != ask.nodes.end();
        if (c.merged && !stays) c.over = true;  // whoever is not named is out
    }
    return true;
}

void Simulator::slurm_arrives(std::uint32_t node, const AskSlurm &ask) {
    using Mode = Slurm::Mode;
    SlurmAnswer answer;
    answer.request = ask.request;
    Duration delay(random_.between(500, 20000));
    bool away = !slurm_reaches(node);
    if (slurm_.mode == Mode::late) delay = milliseconds(random_.between(100, 1200));
    if (away) {
        answer.result = SlurmAnswer::Result::unreachable;
        delay = milliseconds(random_.between(1, 1000));
    } else if (ask.what == AskSlurm::What::read_job) {
        nodes_[node].job_seen = now_;
        answer.job_nodes = slurm_.nodes;
        answer.job_running = slurm_.running;
        answer.left = slurm_.left;
        for (std::uint32_t i = step_nodes_; i < config_.nodes.size(); ++i)
            if (!in_job(i)) answer.ended.push_back(NodeIndex(i));
    } else if (ask.what == AskSlurm::What::expand_job && slurm_.mode != Mode::refusing && slurm_.running) {
        bool begun = expand_job(node, ask);
        if (begun && slurm_.mode != Mode::answer_lost) return;  // answered when the nodes have asked
        answer.result = begun ? SlurmAnswer::Result::unreachable : SlurmAnswer::Result::refused;
        std::erase_if(slurm_.expansions, [&](const Expansion &e) {
            return begun && e.node == node && e.request == ask.request;
        });
    } else if (ask.what == AskSlurm::What::shrink_to && !can_shrink()) {
        answer.result = SlurmAnswer::Result::unable;
        answer.text = "nodes can not be taken out of the job";
    } else if (slurm_.mode == Mode::refusing && ask.what != AskSlurm::What::leave_behind) {
        answer.result = SlurmAnswer::Result::refused;
        answer.text = "not now";
    } else {
        bool done = slurm_does(node, ask);
        answer.result = done ? SlurmAnswer::Result::done : SlurmAnswer::Result::refused;
        if (slurm_.mode == Mode::answer_lost) {
            answer.result = SlurmAnswer::Result::unreachable;
            delay = milliseconds(random_.between(500, 1500));
        }
    }
    Payload p;
    p.input = std::move(answer);
    push(now_ + delay, Kind::slurm_answers, node, keep(std::move(p)));
}

}  // namespace dlrover::sim
