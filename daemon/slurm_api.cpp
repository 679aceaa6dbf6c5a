// SPDX-License-Identifier: Apache-2.0
#include "daemon/slurm_api.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>

#include "base/slurm_error.h"

namespace dlrover::daemon {
namespace {

constexpr std::size_t max_nodes = 65536;

}  // namespace

std::string text_of(const char *text) {
    return text ? text : "";
}

Status failure(const std::string &what) {
    int error = ::slurm_get_errno();
    return Status(code_of_slurm(error), what + ": " + text_of(::slurm_strerror(error)));
}

std::string name_of(JobId job) {
    return "job " + std::to_string(job.value());
}

std::vector<std::string> expand(const char *ranges) {
    std::vector<std::string> names;
    if (!ranges || !*ranges) return names;
    HostList list(::slurm_hostlist_create(ranges));
    if (!list) return names;
    while (names.size() < max_nodes) {
        std::unique_ptr<char, decltype(&std::free)> name(::slurm_hostlist_shift(list.get()), std::free);
        if (!name) break;
        names.emplace_back(name.get());
    }
    return names;
}

bool is_running(const slurm_job_info_t &job) {
    auto base = job.job_state & JOB_STATE_BASE;
    return base == JOB_RUNNING || base == JOB_SUSPENDED;
}

bool is_waiting(const slurm_job_info_t &job) {
    return (job.job_state & JOB_STATE_BASE) == JOB_PENDING;
}

std::span<const slurm_job_info_t> records(const Jobs &jobs) {
    if (!jobs) return {};
    return {jobs->job_array, jobs->record_count};
}

const slurm_job_info_t *find_job(const Jobs &jobs, JobId id) {
    for (const slurm_job_info_t &job : records(jobs))
        if (job.job_id == id.value()) return &job;
    return nullptr;
}

Status fetch_job(JobId id, Jobs &jobs) {
    job_info_msg_t *raw = nullptr;
    int rc = ::slurm_load_job(&raw, id.value(), SHOW_ALL);
    jobs.reset(raw);
    if (rc != SLURM_SUCCESS) return failure(name_of(id));
    if (!jobs || !find_job(jobs, id)) return Status(Code::not_found, name_of(id) + " is not known to Slurm");
    return {};
}

Result<Jobs> load_jobs_of(std::uint32_t uid) {
    job_info_msg_t *raw = nullptr;
    int rc = uid == 0 ? ::slurm_load_jobs(0, &raw, SHOW_ALL) : ::slurm_load_job_user(&raw, uid, SHOW_ALL);
    Jobs jobs(raw);
    if (rc != SLURM_SUCCESS) return failure("the list of jobs");
    return jobs;
}

Result<Steps> load_steps(JobId job, std::uint32_t step) {
    job_step_info_response_msg_t *raw = nullptr;
    int rc = ::slurm_get_job_steps(0, job.value(), step, &raw, SHOW_ALL);
    Steps steps(raw);
    if (rc != SLURM_SUCCESS) return failure(name_of(job) + ", its steps");
    return steps;
}

Status send_update(JobId id, job_desc_msg_t &update, const std::string &what) {
    if (::slurm_update_job(&update) != SLURM_SUCCESS) return failure(name_of(id) + ", " + what);
    return {};
}

Status add_to_comment(JobId id, std::string comment, const std::string &word) {
    comment += (comment.empty() ? "" : " ") + word;
    if (comment.size() > longest_comment)
        return Status(Code::invalid_argument, name_of(id) + " has no room for it in its AdminComment");
    job_desc_msg_t update;
    ::slurm_init_job_desc_msg(&update);
    update.job_id = id.value();
    update.admin_comment = comment.data();
    return send_update(id, update, "comment");
}

Status kill_job(JobId id) {
    if (::slurm_kill_job(id.value(), SIGKILL, 0) == SLURM_SUCCESS) return {};
    bool over = ::slurm_get_errno() == ESLURM_ALREADY_DONE;
    return over ? Status() : failure("cancel " + name_of(id));
}

}  // namespace dlrover::daemon
