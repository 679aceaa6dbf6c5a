// SPDX-License-Identifier: Apache-2.0
#include "daemon/slurm_companions.h"

#include <slurm/slurm_errno.h>

#include <algorithm>
#include <csignal>

#include "daemon/companion.h"
#include "daemon/slurm_terms.h"

namespace dlrover::daemon {
namespace {

std::vector<char *> pointers(std::vector<std::string> &words) {
    std::vector<char *> result;
    for (auto &word : words) result.push_back(word.data());
    return result;
}

/// Beside a batch job's own output, for what the workers there write. Slurm would read '%' and '\\'.
std::string companion_output(const slurm_job_info_t &job) {
    std::string own = text_of(job.std_out), none = "/dev/null";
    auto slash = own.rfind('/');
    bool usable = job.batch_flag && own[0] == '/' && own.find_first_of("%\\") == std::string::npos &&
                  !own.starts_with("/dev/");
    if (!usable) return none;
    return own.substr(0, slash + 1) + "dlrover-" + std::to_string(job.job_id) + "-node-%j.out";
}

/// The main job's own nodes, and those that its user does not want.
std::vector<std::string> excluded_nodes(const CompanionOrder &order, const slurm_job_info_t &job) {
    std::vector<std::string> nodes = order.excluded;
    for (std::string &name : expand(job.exc_nodes)) nodes.push_back(std::move(name));
    std::sort(nodes.begin(), nodes.end());
    nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
    return nodes;
}

Status check_main(const CompanionOrder &order, const slurm_job_info_t &job) {
    if (!is_running(job) || job.restart_cnt != order.restart_count)
        return Status(Code::invalid_argument, name_of(order.job) + " does not run any more");
    return check_shape(job);
}

/// What Slurm is asked for, on whose terms. The pointers in `desc` are into the rest of it.
struct OneNode {
    Jobs jobs;
    slurm_job_info_t *job = nullptr;
    std::uint32_t cpus_per_task = 1;
    std::string excluded;
    job_desc_msg_t desc;
};
Status prepare(const CompanionOrder &order, OneNode &out) {
    DLROVER_TRY(fetch_job(order.job, out.jobs));
    out.job = const_cast<slurm_job_info_t *>(find_job(out.jobs, order.job));
    auto cpus = cpus_per_task(order.job, order.step);
    if (!cpus) return cpus.take_status();
    auto minutes = minutes_left(*out.job);
    if (!minutes) return std::move(minutes.take_status()).with_context(name_of(order.job));
    DLROVER_TRY(check_main(order, *out.job));
    out.cpus_per_task = *cpus;
    out.excluded = join(excluded_nodes(order, *out.job));
    job_desc_msg_t &desc = out.desc;
    ::slurm_init_job_desc_msg(&desc);
    take_terms(*out.job, desc);
    take_shape(*out.job, desc);
    desc.time_limit = *minutes;
    desc.num_tasks = desc.ntasks_per_node = order.tasks;
    desc.cpus_per_task = static_cast<std::uint16_t>(*cpus);
    desc.min_nodes = desc.max_nodes = 1;
    desc.min_cpus = *cpus * order.tasks;
    desc.requeue = 0;
    desc.exc_nodes = out.excluded.data();
    return {};
}

/// A job of one node, without a program, which Slurm gives at once or refuses; for as long as the main
/// job, so that the node is free for all of it.
Result<std::pair<JobId, std::string>> allocate(const CompanionOrder &order, OneNode &node) {
    std::string number = std::to_string(order.job.value());
    std::string name = "dlrover-" + number + "-node", dependency = "expand:" + number, cwd = "/";
    std::string comment = "a node that is moved into job " + number;
    std::string mark = companion_mark(order.job, order.step, order.restart_count) + " " + expands_word;
    node.desc.name = name.data();
    node.desc.comment = comment.data();
    node.desc.admin_comment = mark.data();
    node.desc.dependency = dependency.data();
    node.desc.work_dir = cwd.data();
    node.desc.immediate = 1;
    resource_allocation_response_msg_t *raw = nullptr;
    int rc = ::slurm_allocate_resources(&node.desc, &raw);
    std::unique_ptr<resource_allocation_response_msg_t, FreeAllocation> given(raw);
    if (rc != SLURM_SUCCESS) return failure("a node for " + name_of(order.job));
    if (!given || given->job_id == 0) return Status(Code::invalid_argument, "Slurm gave no node");
    auto nodes = expand(given->node_list);
    if (nodes.size() == 1) return std::pair(JobId(given->job_id), nodes.front());
    (void)::slurm_kill_job(given->job_id, SIGKILL, 0);
    return Status(Code::invalid_argument, "no node is free now");
}

/// First of all its life is bounded, and the main job says whose the node is.
Status move_in(const CompanionOrder &order, const OneNode &node, JobId from, const std::string &name) {
    job_desc_msg_t update;
    ::slurm_init_job_desc_msg(&update);
    update.job_id = from.value();
    update.time_limit = 1;
    DLROVER_TRY(send_update(from, update, "its time"));
    std::string comment =
        add_grown(text_of(node.job->admin_comment), grown_mark(order.step, order.restart_count, name),
                  expand(node.job->nodes));
    ::slurm_init_job_desc_msg(&update);
    update.job_id = order.job.value();
    update.admin_comment = comment.data();
    DLROVER_TRY(send_update(order.job, update, "comment"));
    ::slurm_init_job_desc_msg(&update);
    update.job_id = from.value();
    update.min_nodes = 0;
    return send_update(from, update, "its node for " + name_of(order.job));
}

Result<JobId> submit(const CompanionOrder &order, std::uint32_t cpus, std::string output,
                     job_desc_msg_t &desc) {
    auto words = companion_words(order, cpus);
    auto environment = companion_environment(order.environment);
    auto argv = pointers(words), envp = pointers(environment);
    std::string name = "dlrover-" + std::to_string(order.job.value()) + "-node";
    std::string comment = "a node in place of a lost one of job " + std::to_string(order.job.value());
    std::string script = companion_script, input = "/dev/null";
    std::string cwd = order.cwd.empty() ? "/" : order.cwd;
    desc.name = name.data();
    desc.comment = comment.data();
    desc.script = script.data();
    desc.work_dir = cwd.data();
    desc.std_in = input.data();
    desc.std_out = desc.std_err = output.data();
    desc.argc = static_cast<std::uint32_t>(argv.size());
    desc.argv = argv.data();
    desc.env_size = static_cast<std::uint32_t>(envp.size());
    desc.environment = envp.data();
    submit_response_msg_t *raw = nullptr;
    int rc = ::slurm_submit_batch_job(&desc, &raw);
    std::unique_ptr<submit_response_msg_t, FreeSubmitted> response(raw);
    if (rc != SLURM_SUCCESS) return failure("a job for another node");
    if (!response || response->job_id == 0) return Status(Code::invalid_argument, "Slurm gave no job");
    return JobId(response->job_id);
}

}  // namespace

Result<JobId> submit_companion_job(const CompanionOrder &order) {
    OneNode node;
    DLROVER_TRY(prepare(order, node));
    auto submitted = submit(order, node.cpus_per_task, companion_output(*node.job), node.desc);
    if (!submitted) return submitted;
    Status marked = mark_as_companion(*submitted, companion_mark(order.job, order.step, order.restart_count));
    if (marked.ok()) return submitted;
    (void)kill_job(*submitted).ok();  // nobody would find it again
    return marked;
}

Result<Growth> grow_main_job(const CompanionOrder &order) {
    OneNode node;
    DLROVER_TRY(prepare(order, node));
    auto granted = allocate(order, node);
    if (!granted) return granted.take_status();
    Status merged = move_in(order, node, granted->first, granted->second);
    if (merged.ok()) return Growth{granted->second, node.cpus_per_task};
    (void)kill_job(granted->first).ok();  // where it is not known here, it ends within a minute
    return merged;
}

Result<std::vector<Companion>> find_companions(std::uint32_t uid, const std::string &mark) {
    auto jobs = load_jobs_of(uid);
    if (!jobs) return jobs.take_status();
    std::vector<Companion> found;
    for (const slurm_job_info_t &job : records(*jobs)) {
        bool waits = is_waiting(job);
        if (job.user_id != uid || (!waits && !is_running(job)) ||
            find_mark(text_of(job.admin_comment)) != mark)
            continue;
        found.push_back({JobId(job.job_id), waits, has_word(text_of(job.admin_comment), expands_word),
                         waits ? std::vector<std::string>{} : expand(job.nodes)});
    }
    return found;
}

Status mark_as_companion(JobId id, const std::string &mark) {
    Jobs jobs;
    DLROVER_TRY(fetch_job(id, jobs));
    std::string comment = text_of(find_job(jobs, id)->admin_comment);
    if (!find_mark(comment).empty())
        return Status(Code::permission_denied, name_of(id) + " is another group's already");
    return add_to_comment(id, comment, mark);
}

}  // namespace dlrover::daemon
