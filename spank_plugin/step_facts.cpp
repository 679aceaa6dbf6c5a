// SPDX-License-Identifier: Apache-2.0
#include "spank_plugin/step_facts.h"

#include <numeric>

#include "base/hostlist.h"
#include "spank_plugin/tasks_per_node.h"

namespace dlrover::spank {
namespace {

constexpr std::uint32_t no_array_limit = 0xfffffffd;  // Slurm's INFINITE, NO_VAL and above: not an array

/// Slurm gives a plain job its own number as that of the array; only the task's number tells.
bool is_array_task(const StepFacts &facts) {
    return facts.array_job_id != 0 && facts.array_job_id < no_array_limit &&
           facts.array_task_id < no_array_limit;
}

/// The whole command where it fits; a longer one is cut at the same place on every node.
std::vector<std::string> bounded_argv(const std::vector<std::string> &argv) {
    std::vector<std::string> copy;
    std::size_t bytes = 0;
    for (const std::string &word : argv) {
        bytes += word.size() + 1;
        if (bytes > max_argv_bytes) break;
        copy.push_back(word);
    }
    return copy;
}

std::unique_ptr<proto::ElasticOptionsT> make_options(const Options &options, const GroupSize &size) {
    auto out = std::make_unique<proto::ElasticOptionsT>();
    out->min_nodes = size.min_nodes;
    out->max_nodes = size.max_nodes;
    out->spares = options.spares;
    out->node_unit = options.node_unit;
    out->max_restarts = options.max_restarts;
    out->name = options.name;
    out->ckpt_dir = options.ckpt_dir;
    CkptSchedule schedule = ckpt_schedule(options);
    out->ckpt_every_steps = schedule.every_steps;
    out->ckpt_every_us = schedule.every.count();
    out->ckpt_keep_last = schedule.keep_last;
    out->ckpt_keep_every = schedule.keep_every;
    out->redundancy = options.redundancy;
    out->optional = options.optional;
    out->companions = options.companion;
    out->requeue_without_host = options.requeue_without_host;
    switch (options.pmix) {
        case Pmix::no:
            out->pmix = proto::PmixMode::No;
            break;
        case Pmix::yes:
            out->pmix = proto::PmixMode::Yes;
            break;
        case Pmix::automatic:
            out->pmix = proto::PmixMode::Auto;
            break;
    }
    return out;
}

/// Nodes and tasks, checked against Slurm's numbers.
Status fill_layout(const StepFacts &facts, proto::StepRegistrationT &step) {
    auto names = expand_hostlist(facts.step_nodes);
    if (!names) return std::move(names.take_status()).with_context("SLURM_STEP_NODELIST");
    if (names->size() != facts.nodes || facts.node_index >= facts.nodes)
        return Status(Code::invalid_argument, "SLURM_STEP_NODELIST does not name the step's " +
                                                  std::to_string(facts.nodes) + " nodes");
    auto tasks = parse_tasks_per_node(facts.tasks_per_node, facts.nodes);
    if (!tasks) return std::move(tasks.take_status()).with_context("SLURM_STEP_TASKS_PER_NODE");
    auto total = std::accumulate(tasks->begin(), tasks->end(), std::uint64_t{0});
    if (total != facts.total_tasks || (*tasks)[facts.node_index] != facts.tasks_here)
        return Status(Code::invalid_argument, "SLURM_STEP_TASKS_PER_NODE contradicts the step's tasks");
    step.node_names = std::move(*names);
    step.tasks_per_node = std::move(*tasks);
    return {};
}

std::string first_host(const std::string &list) {
    auto names = expand_hostlist(list);
    return names && !names->empty() ? names->front() : "";
}

}  // namespace

Result<proto::StepRegistrationT> make_registration(const StepFacts &facts, const StepRequest &request,
                                                   const GroupSize &size) {
    proto::StepRegistrationT step;
    DLROVER_TRY(fill_layout(facts, step));
    step.cluster = facts.cluster;
    step.job_id = facts.job_id;
    step.step_id = facts.step_id;
    step.uid = facts.uid;
    step.gid = facts.gid;
    step.restart_count = facts.restart_count;
    step.array_job_id = is_array_task(facts) ? facts.array_job_id : 0;
    step.array_task_id = is_array_task(facts) ? facts.array_task_id : 0;
    step.node_index = facts.node_index;
    step.batch_host = first_host(facts.job_nodes);
    step.options = make_options(request.options, size);
    step.argv = bounded_argv(facts.argv);
    step.cwd = request.cwd;
    step.stepd_pid = facts.stepd_pid;
    return step;
}

}  // namespace dlrover::spank
