// SPDX-License-Identifier: Apache-2.0
#include "daemon/slurm_allocation.h"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>

#include "daemon/slurm_terms.h"

namespace dlrover::daemon {
namespace {

using proto::AllocationOrder;
using proto::AllocationState;
using Stage = AllocationState::Stage;

/// The first word of the new job's comment, which its user can write: a guard against mistakes.
std::string mark_of(JobId job) {
    return "dlrover-new:" + std::to_string(job.value());
}

bool is_ours(const slurm_job_info_t &job, const std::string &mark) {
    std::string comment = text_of(job.comment);
    return job.user_id == ::geteuid() && comment.substr(0, comment.find(' ')) == mark;
}

/// The host that salloc would be called on here.
std::string host_name() {
    char name[HOST_NAME_MAX + 1] = "";
    ::gethostname(name, HOST_NAME_MAX);
    std::string text = name;
    return text.substr(0, text.find('.'));
}

Status check_asker(const slurm_job_info_t &job) {
    if (job.user_id != ::geteuid())
        return Status(Code::permission_denied, name_of(JobId(job.job_id)) + " is another user's");
    if (!is_running(job))
        return Status(Code::invalid_argument, name_of(JobId(job.job_id)) + " does not run any more");
    return check_shape(job);
}

Status check_room(JobId job) {
    auto jobs = load_jobs_of(::geteuid());
    if (!jobs) return jobs.take_status();
    auto all = records(*jobs);
    auto counts = [mark = mark_of(job)](const slurm_job_info_t &one) {
        return (is_waiting(one) || is_running(one)) && is_ours(one, mark);
    };
    if (static_cast<std::size_t>(std::ranges::count_if(all, counts)) < most_allocations) return {};
    return Status(Code::resource_exhausted, std::to_string(most_allocations) + " allocations that " +
                                                name_of(job) + " has asked for wait or run");
}

Result<std::uint32_t> minutes_of(const AllocationOrder &order, const slurm_job_info_t &job) {
    if (order.seconds) return *order.seconds / 60 + (*order.seconds % 60 != 0 ? 1 : 0);
    auto minutes = minutes_left(job);
    if (!minutes) return std::move(minutes.take_status()).with_context(name_of(order.job));
    return minutes;
}

/// What Slurm is asked for. The pointers in `desc` are into the rest of it, and into the job's record.
struct NewJob {
    std::string name, comment, partition, cwd, host;
    job_desc_msg_t desc;
};

Status prepare(const AllocationOrder &order, slurm_job_info_t &job, NewJob &out) {
    auto minutes = minutes_of(order, job);
    if (!minutes) return minutes.take_status();
    auto cpus = cpus_per_task(order.job, order.step);
    if (!cpus) return cpus.take_status();
    auto tasks = tasks_per_node(order.job, order.step);
    if (!tasks) return tasks.take_status();
    out.name = "dlrover-" + std::to_string(order.job.value()) + "-new";
    out.comment = mark_of(order.job) + (order.label.empty() ? "" : " " + order.label);
    out.partition = order.partition;
    out.cwd = text_of(job.work_dir).empty() ? "/" : text_of(job.work_dir);
    out.host = host_name();
    job_desc_msg_t &desc = out.desc;
    ::slurm_init_job_desc_msg(&desc);
    take_terms(job, desc);
    take_shape(job, desc);
    desc.group_id = ::getegid();
    if (!out.partition.empty()) desc.partition = out.partition.data();
    desc.alloc_node = out.host.data();
    desc.exc_nodes = job.exc_nodes;
    desc.name = out.name.data();
    desc.comment = out.comment.data();
    desc.work_dir = out.cwd.data();
    desc.time_limit = *minutes;
    desc.min_nodes = desc.max_nodes = order.nodes;
    desc.ntasks_per_node = *tasks;
    desc.num_tasks = order.nodes * *tasks;
    desc.cpus_per_task = static_cast<std::uint16_t>(*cpus);
    desc.min_cpus = desc.num_tasks * *cpus;
    desc.immediate = 0;
    desc.requeue = 0;
    desc.kill_on_node_fail = 0;  // as the group's own job: an elastic step in it goes on
    return {};
}

std::string names(const char *nodes) {
    return join(expand(nodes));
}

Result<AllocationState> create(const AllocationOrder &order) {
    Jobs jobs;
    DLROVER_TRY(fetch_job(order.job, jobs));
    auto *job = const_cast<slurm_job_info_t *>(find_job(jobs, order.job));
    DLROVER_TRY(check_asker(*job));
    DLROVER_TRY(check_room(order.job));
    NewJob wanted;
    DLROVER_TRY(prepare(order, *job, wanted));
    resource_allocation_response_msg_t *raw = nullptr;
    int rc = ::slurm_allocate_resources(&wanted.desc, &raw);
    std::unique_ptr<resource_allocation_response_msg_t, FreeAllocation> given(raw);
    if (rc != SLURM_SUCCESS) return failure("a new allocation");
    if (!given || given->job_id == 0) return Status(Code::invalid_argument, "Slurm gave no job");
    std::string nodes = names(given->node_list);
    return AllocationState{nodes.empty() ? Stage::waiting : Stage::running, JobId(given->job_id), nodes};
}

/// As scontrol shows it: libslurm's header has no other way from a reason's number to its name.
std::string reason_of(slurm_job_info_t &job) {
    char *shown = nullptr;
    std::size_t size = 0;
    std::FILE *file = ::open_memstream(&shown, &size);
    if (file == nullptr) return {};
    ::slurm_print_job_info(file, &job, 0);
    std::fclose(file);
    std::string text(shown, size);
    std::free(shown);
    constexpr std::string_view before = " Reason=";
    auto at = text.find(before, std::min(text.find("\n   JobState="), text.size()));
    if (at == std::string::npos) return {};
    at += before.size();
    return text.substr(at, text.find_first_of(" \n", at) - at);
}

Result<AllocationState> look(const AllocationOrder &order) {
    Jobs jobs;
    DLROVER_TRY(fetch_job(order.allocation, jobs));
    auto &job = *const_cast<slurm_job_info_t *>(find_job(jobs, order.allocation));
    if (!is_ours(job, mark_of(order.job)))
        return Status(Code::permission_denied, name_of(order.allocation) + " is not one that ranks of " +
                                                   name_of(order.job) + " have asked for");
    if (is_waiting(job)) return AllocationState{Stage::waiting, order.allocation, reason_of(job)};
    if (is_running(job)) return AllocationState{Stage::running, order.allocation, names(job.nodes)};
    return AllocationState{Stage::ended, order.allocation};
}

Result<AllocationState> release(const AllocationOrder &order) {
    auto state = look(order);
    if (!state || state->stage == Stage::ended) return state;
    DLROVER_TRY(kill_job(order.allocation));
    return AllocationState{Stage::ended, order.allocation};
}

}  // namespace

Result<AllocationState> carry_out(const AllocationOrder &order) {
    switch (order.verb) {
        case AllocationOrder::Verb::create:
            return create(order);
        case AllocationOrder::Verb::release:
            return release(order);
        case AllocationOrder::Verb::status:
            return look(order);
    }
    return Status(Code::internal, "no such order");
}

}  // namespace dlrover::daemon
