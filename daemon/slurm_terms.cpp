// SPDX-License-Identifier: Apache-2.0
#include "daemon/slurm_terms.h"

#include <algorithm>
#include <ctime>

namespace dlrover::daemon {

void take_terms(const slurm_job_info_t &job, job_desc_msg_t &out) {
    out.user_id = job.user_id;
    out.group_id = job.group_id;
    out.account = job.account;
    out.partition = job.partition;
    out.qos = job.qos;
    out.reservation = job.resv_name;
    out.wckey = job.wckey;
    out.mcs_label = job.mcs_label;
    out.nice = std::max(job.nice, std::uint32_t{NICE_OFFSET});  // only an operator may go below
    out.alloc_node = job.alloc_node;  // a partition may be for jobs from some nodes only
}

void take_shape(const slurm_job_info_t &job, job_desc_msg_t &out) {
    out.pn_min_memory = job.pn_min_memory;
    out.pn_min_tmp_disk = job.pn_min_tmp_disk;
    out.tres_per_node = job.tres_per_node;
    out.tres_per_socket = job.tres_per_socket;
    out.tres_per_task = job.tres_per_task;
    out.cpus_per_tres = job.cpus_per_tres;
    out.mem_per_tres = job.mem_per_tres;
    out.features = job.features;
    out.cluster_features = job.cluster_features;
    out.tres_bind = job.tres_bind;
    out.tres_freq = job.tres_freq;
    out.ntasks_per_tres = job.ntasks_per_tres;
    out.network = job.network;
    out.core_spec = job.core_spec;
    out.sockets_per_node = job.sockets_per_node;
    out.cores_per_socket = job.cores_per_socket;
    out.threads_per_core = job.threads_per_core;
    out.cpu_freq_min = job.cpu_freq_min;
    out.cpu_freq_max = job.cpu_freq_max;
    out.cpu_freq_gov = job.cpu_freq_gov;
    out.shared = job.shared;
}

Status check_shape(const slurm_job_info_t &job) {
    if (text_of(job.tres_per_job).empty()) return {};
    return Status(Code::invalid_argument,
                  "the job asks for " + text_of(job.tres_per_job) +
                      " in all (as by --gpus): Slurm does not say what one node of it needs; ask for "
                      "them by the node (--gpus-per-node)");
}

Result<std::uint32_t> minutes_left(const slurm_job_info_t &job) {
    if (job.time_limit == INFINITE) return std::uint32_t{INFINITE};
    auto left = (job.end_time - std::time(nullptr)) / 60;
    if (left < 1) return Status(Code::invalid_argument, "its time is nearly over");
    return static_cast<std::uint32_t>(std::min<std::int64_t>(left, NO_VAL - 1));
}

Result<std::uint32_t> cpus_per_task(JobId job, StepId step) {
    auto steps = load_steps(job, step.value());
    if (!steps) return steps.take_status();
    for (std::uint32_t i = 0; *steps && i < (*steps)->job_step_count; ++i) {
        const job_step_info_t &one = (*steps)->job_steps[i];
        if (one.step_id.job_id != job.value() || one.step_id.step_id != step.value()) continue;
        std::uint32_t tasks = std::max(one.num_tasks, std::uint32_t{1});
        return std::clamp<std::uint32_t>(one.num_cpus / tasks, 1, UINT16_MAX - 2);
    }
    return Status(Code::invalid_argument, name_of(job) + " has no such step any more");
}

Result<std::uint16_t> tasks_per_node(JobId job, StepId step) {
    slurm_step_id_t id{};
    id.job_id = job.value();
    id.step_id = step.value();
    id.step_het_comp = NO_VAL;
    std::unique_ptr<slurm_step_layout_t, FreeLayout> layout(::slurm_job_step_layout_get(&id));
    if (!layout) return failure(name_of(job) + ", its step's tasks");
    std::uint16_t most = 1;
    for (std::uint32_t i = 0; layout->tasks && i < layout->node_cnt; ++i)
        most = std::max(most, layout->tasks[i]);
    return most;
}

}  // namespace dlrover::daemon
