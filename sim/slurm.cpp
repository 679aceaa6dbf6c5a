// SPDX-License-Identifier: Apache-2.0
// Slurm as far as a group sees it: a shrink is a compare-and-swap on the job's nodes; the batch host stays.
#include <algorithm>

#include "sim/simulator.h"

namespace dlrover::sim {

using namespace elastic;
using std::chrono::milliseconds;

/// True when carried out.
bool Simulator::slurm_does(std::uint32_t node, const AskSlurm &ask) {
    if (!slurm_.running) return false;
    if (ask.what == AskSlurm::What::requeue) {
        slurm_.running = false;
        ++slurm_.requeues;
        slurm_.requeued_at = now_;
        next_run_planned_ = plan_next_run();
        for (Companion &c : slurm_.companions) end_companion(c, true);
        for (std::uint32_t i = 0; i < nodes_.size(); ++i)
            push(now_ + milliseconds(random_.between(1, 500)), Kind::kill_removed, i);
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
    slurm_.nodes = ask.nodes;
    return true;
}

void Simulator::slurm_arrives(std::uint32_t node, const AskSlurm &ask) {
    using Mode = Slurm::Mode;
    SlurmAnswer answer;
    answer.request = ask.request;
    Duration delay(random_.between(500, 20000));
    bool away = slurm_.mode == Mode::unreachable ||
                (slurm_.unreachable_side != 0 && nodes_[node].side == slurm_.unreachable_side);
    if (slurm_.mode == Mode::late) delay = milliseconds(random_.between(100, 1200));
    if (away) {
        answer.result = SlurmAnswer::Result::unreachable;
        delay = milliseconds(random_.between(1, 1000));
    } else if (ask.what == AskSlurm::What::read_job) {
        nodes_[node].job_seen = now_;
        answer.job_nodes = slurm_.nodes;
        answer.job_running = slurm_.running;
        for (std::uint32_t i = step_nodes_; i < config_.nodes.size(); ++i)
            if (!in_job(i)) answer.ended.push_back(NodeIndex(i));
    } else if (slurm_.mode == Mode::refusing) {
        answer.result = SlurmAnswer::Result::refused;
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
