// SPDX-License-Identifier: Apache-2.0
#include "daemon/registration.h"

#include <algorithm>

#include "base/count_of.h"
#include "ckpt/lineage.h"

namespace dlrover::daemon {
namespace {

constexpr std::size_t max_nodes = 16384;
constexpr std::size_t max_tasks_per_node = 1024;
constexpr std::size_t max_name_bytes = 256;
constexpr std::size_t max_path_bytes = 4095;
constexpr std::size_t max_kept_argv_bytes = 4096;

Status refuse(std::string text) {
    return Status(Code::invalid_argument, std::move(text));
}

std::vector<std::string> own_nodes(const proto::StepRegistrationT &s) {
    return {s.node_names.begin(), s.node_names.end() - static_cast<std::ptrdiff_t>(s.companion_jobs.size())};
}

bool printable(const std::string &text) {
    return std::all_of(text.begin(), text.end(),
                       [](char c) { return static_cast<unsigned char>(c) >= ' ' && c != 127; });
}

Status check_options(const proto::ElasticOptionsT &o, std::size_t nodes) {
    if (o.min_nodes == 0 || o.min_nodes > o.max_nodes)
        return refuse("the least number of nodes must be between 1 and the greatest");
    if (std::uint64_t{o.max_nodes} + o.spares != nodes)
        return refuse("the step has " + count_of(nodes, "node") + ", but " + std::to_string(o.max_nodes) +
                      " and " + count_of(o.spares, "spare") + " are asked for");
    if (o.node_unit == 0 || o.node_unit > o.max_nodes || o.min_nodes % o.node_unit != 0)
        return refuse("the node unit does not fit the least number of nodes");
    if (o.name.size() > max_name_bytes || !printable(o.name) || o.name.find('/') != std::string::npos)
        return refuse("the name is too long or has characters that can not be used");
    if (!o.ckpt_dir.empty() &&
        (o.ckpt_dir[0] != '/' || o.ckpt_dir.size() > max_path_bytes || !printable(o.ckpt_dir)))
        return refuse("the checkpoint folder must be an absolute path without control characters");
    if (o.ckpt_every_us < 0) return refuse("the time between checkpoints is negative");
    if (o.pmix > proto::PmixMode::MAX) return refuse("whether it has PMIx is not said");
    return {};
}

Status check_nodes(const proto::StepRegistrationT &s, const std::string &node) {
    if (s.node_names.empty() || s.node_names.size() > max_nodes)
        return refuse("a step has 1 to " + std::to_string(max_nodes) + " nodes");
    if (s.tasks_per_node.size() != s.node_names.size())
        return refuse("the number of tasks is needed for every node");
    for (const auto &name : s.node_names)
        if (name.empty() || name.size() > max_name_bytes || !printable(name))
            return refuse("a node's name is not valid");
    if (s.join_steps.size() > s.companion_jobs.size())
        return refuse("more nodes have joined by a step than have joined");
    if (s.companion_jobs.size() >= s.node_names.size()) return refuse("a step has nodes of its own");
    auto sorted = own_nodes(s);
    std::sort(sorted.begin(), sorted.end());
    if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
        return refuse("a node is named twice");
    if (s.node_index >= s.node_names.size() || s.node_names[s.node_index] != node)
        return refuse("this daemon serves node " + node + ", not the one named");
    for (auto tasks : s.tasks_per_node)
        if (tasks == 0 || tasks > max_tasks_per_node)
            return refuse("each node must run 1 to " + std::to_string(max_tasks_per_node) + " tasks");
    return {};
}

}  // namespace

Status check_registration(const proto::StepRegistrationT &s, const std::string &node) {
    if (s.job_id == 0) return refuse("a job has a number");
    if (!s.options) return refuse("the options are missing");
    DLROVER_TRY(check_nodes(s, node));
    return check_options(*s.options, own_nodes(s).size());
}

Status check_with_slurm(proto::StepRegistrationT &s, const SlurmStep &slurm) {
    std::string name = std::to_string(s.job_id) + "." + std::to_string(s.step_id);
    if (slurm.job.uid != s.uid)
        return Status(Code::permission_denied, "step " + name + " belongs to another user, says Slurm");
    // To slurmstepd of a step Slurm tells no count: 0.
    if (s.restart_count != 0 && slurm.job.restart_count != s.restart_count)
        return Status(Code::stale, "job " + std::to_string(s.job_id) + " is in run " +
                                       std::to_string(slurm.job.restart_count) + ", says Slurm");
    if (slurm.nodes != own_nodes(s))
        return Status(Code::permission_denied, "step " + name + " has other nodes, says Slurm");
    s.restart_count = slurm.job.restart_count;
    s.gid = slurm.job.gid;
    s.array_job_id = slurm.job.array_job_id;
    s.array_task_id = slurm.job.array_task_id;
    s.batch_host = slurm.job.batch_host;
    s.lost_before = slurm.job.lost_before;
    return {};
}

/// Of a node that the job was expanded by. Its steps have each a number of their own, in one run.
static Status check_own_target(const proto::StepRegistrationT &step, const proto::JoinTargetT &target) {
    if (step.step_id == target.step_id) return refuse("a step can not join itself");
    if (step.node_names.size() != 1) return refuse("only a step of one node can join");
    return {};
}

Status check_target(const proto::StepRegistrationT &step, const SlurmJob &own,
                    const proto::JoinTargetT &target, const SlurmJob &job) {
    std::string name = "job " + std::to_string(target.job_id);
    // Whether there is such a job is not a stranger's business.
    if (job.uid != step.uid)
        return Status(Code::permission_denied, "you have no " + name + " that could be joined");
    if (!job.running) return Status(Code::stale, name + " does not run");
    if (!target.any_run && job.restart_count != target.restart_count)
        return Status(Code::stale, name + " is in run " + std::to_string(job.restart_count) + ", says Slurm");
    std::string mark = companion_mark(JobId(target.job_id), StepId(target.step_id), job.restart_count);
    if (!own.mark.empty() && own.mark != mark)
        return Status(Code::permission_denied, "this job is for another step (" + own.mark + ")");
    if (step.job_id == target.job_id) return check_own_target(step, target);
    if (own.nodes.size() != 1) return refuse("only another job, of one node, can join");
    // Each job is one node of the group, once: a member that has forgotten what it promised must not be it
    // again.
    if (step.step_id != 0 || own.restart_count != 0)
        return refuse("only the first step of a job that was not requeued can join: submit another job");
    return {};
}

StepKey joined_by(const proto::StepRegistrationT &group, std::size_t i) {
    std::uint32_t step = i < group.join_steps.size() ? group.join_steps[i] : 0;
    return {JobId(group.companion_jobs[i]), StepId(step)};
}

Status check_launch(const proto::LaunchSpecT &launch) {
    std::size_t bytes = 0;
    for (const auto *list : {&launch.argv, &launch.environment})
        for (const std::string &word : *list) {
            bytes += word.size() + 1;
            if (word.find('\0') != std::string::npos) return refuse("a word of the command holds a zero");
        }
    if (launch.argv.empty()) return refuse("the command is not known");
    if (bytes > max_launch_bytes) return refuse("command and environment are longer than 1 MiB");
    return {};
}

const char *text_of(proto::PmixMode mode) {
    return mode == proto::PmixMode::Yes ? "yes" : mode == proto::PmixMode::No ? "no" : "auto";
}

Status check_newcomer(const proto::StepRegistrationT &group, const proto::StepRegistrationT &step) {
    const auto &want = *group.options, &have = *step.options;
    if (step.argv != group.argv) return refuse("it runs another command than the group");
    if (step.tasks_per_node.front() != group.tasks_per_node.front())
        return refuse("the group runs " + std::to_string(group.tasks_per_node.front()) + " tasks on a node");
    if (have.ckpt_dir != want.ckpt_dir)
        return refuse(want.ckpt_dir.empty()
                          ? "the group has no --dlrover-ckpt-dir"
                          : "give it --dlrover-ckpt-dir=" + want.ckpt_dir + " as the group");
    if (have.redundancy != want.redundancy)
        return refuse("give it --dlrover-redundancy=" + want.redundancy + " as the group");
    if (have.pmix != want.pmix)
        return refuse(std::string("give it --dlrover-pmix=") + text_of(want.pmix) + " as the group");
    return {};
}

std::string lineage_of(const proto::StepRegistrationT &s) {
    std::string name = s.options ? s.options->name : "";
    if (name.empty())
        name = "job" + std::to_string(s.job_id);
    else if (s.array_job_id != 0)
        name += "_" + std::to_string(s.array_task_id);
    return ckpt::make_lineage(s.cluster, s.uid, name, s.argv);
}

void shorten(proto::StepRegistrationT &s) {
    std::size_t bytes = 0, count = 0;
    while (count < s.argv.size() && (bytes += s.argv[count].size() + 1) <= max_kept_argv_bytes) ++count;
    s.argv.resize(count);
    if (s.cwd.size() > max_kept_argv_bytes) s.cwd.clear();
}

}  // namespace dlrover::daemon
