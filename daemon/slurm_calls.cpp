// SPDX-License-Identifier: Apache-2.0
#include "config.h"

#include <pwd.h>
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <memory>
#include <optional>

#include "daemon/companion.h"
#include "daemon/slurm_client.h"

/// libslurm's parsed configuration. Not in its public header, so it may be missing: then slurmctld is asked.
extern "C" slurm_conf_t slurm_conf __attribute__((weak));

namespace dlrover::daemon {
namespace {

struct FreeJobs {
    void operator()(job_info_msg_t *p) const { ::slurm_free_job_info_msg(p); }
};
struct FreeSteps {
    void operator()(job_step_info_response_msg_t *p) const { ::slurm_free_job_step_info_response_msg(p); }
};
struct FreeNodes {
    void operator()(node_info_msg_t *p) const { ::slurm_free_node_info_msg(p); }
};
struct FreePartitions {
    void operator()(partition_info_msg_t *p) const { ::slurm_free_partition_info_msg(p); }
};
struct FreeConf {
    void operator()(slurm_conf_t *p) const { ::slurm_free_ctl_conf(p); }
};
struct FreeHosts {
    void operator()(hostlist_t p) const { ::slurm_hostlist_destroy(p); }
};
struct FreeAllocation {
    void operator()(resource_allocation_response_msg_t *p) const {
        ::slurm_free_resource_allocation_response_msg(p);
    }
};
struct FreeSubmitted {
    void operator()(submit_response_msg_t *p) const { ::slurm_free_submit_response_response_msg(p); }
};
#ifdef HAVE_SLURM_TOPOLOGY_ARRAY
struct FreeTopology {
    void operator()(topo_info_response_msg_t *p) const { ::slurm_free_topo_info_msg(p); }
};
#endif
using Jobs = std::unique_ptr<job_info_msg_t, FreeJobs>;
using Steps = std::unique_ptr<job_step_info_response_msg_t, FreeSteps>;
using Nodes = std::unique_ptr<node_info_msg_t, FreeNodes>;
using Partitions = std::unique_ptr<partition_info_msg_t, FreePartitions>;
using HostList = std::unique_ptr<std::remove_pointer_t<hostlist_t>, FreeHosts>;

/// From here on one question for all nodes is cheaper than one each.
constexpr std::size_t few_nodes = 16;
constexpr std::size_t max_nodes = 65536;

std::string text_of(const char *text) {
    return text ? text : "";
}

Code code_of(int error) {
    switch (error) {
        case ESLURM_INVALID_JOB_ID:
        case ESLURM_INVALID_NODE_NAME:
            return Code::not_found;
        case ESLURM_ACCESS_DENIED:
        case ESLURM_USER_ID_MISSING:
            return Code::permission_denied;
        case ESLURM_ALREADY_DONE:
            return Code::stale;
        case SLURM_PROTOCOL_SOCKET_IMPL_TIMEOUT:
        case ETIMEDOUT:
            return Code::timeout;
        case SLURM_COMMUNICATIONS_CONNECTION_ERROR:
        case SLURM_COMMUNICATIONS_SEND_ERROR:
        case SLURM_COMMUNICATIONS_RECEIVE_ERROR:
        case SLURM_COMMUNICATIONS_SHUTDOWN_ERROR:
        case SLURM_PROTOCOL_SOCKET_IMPL_ZERO_RECV_LENGTH:
        case SLURMCTLD_COMMUNICATIONS_CONNECTION_ERROR:
        case SLURMCTLD_COMMUNICATIONS_SEND_ERROR:
        case SLURMCTLD_COMMUNICATIONS_RECEIVE_ERROR:
        case SLURMCTLD_COMMUNICATIONS_SHUTDOWN_ERROR:
        case ESLURM_IN_STANDBY_MODE:
            return Code::unavailable;
        default:
            // An errno: the connection. Anything else of Slurm's: it has refused.
            return error < 1000 ? Code::unavailable : Code::invalid_argument;
    }
}

Status failure(const std::string &what) {
    int error = ::slurm_get_errno();
    return Status(code_of(error), what + ": " + text_of(::slurm_strerror(error)));
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

constexpr std::size_t longest_comment = 32 << 10;  // slurmdbd's column may end at 64 KiB

std::string join(const std::vector<std::string> &names) {
    std::string text;
    for (const auto &name : names) text += (text.empty() ? "" : ",") + name;
    return text;
}

std::string user_name(const slurm_job_info_t &job) {
    if (job.user_name && *job.user_name) return job.user_name;
    passwd entry{}, *found = nullptr;
    char buffer[4096];
    if (::getpwuid_r(job.user_id, &entry, buffer, sizeof buffer, &found) == 0 && found) return entry.pw_name;
    return std::to_string(job.user_id);
}

bool is_running(const slurm_job_info_t &job) {
    auto base = job.job_state & JOB_STATE_BASE;
    return base == JOB_RUNNING || base == JOB_SUSPENDED;
}

/// Where that can not be told a job that may be requeued had better be.
std::uint16_t preempt_mode() {
    slurm_conf_t *raw = nullptr;
    int rc = ::slurm_load_ctl_conf(0, &raw);
    std::unique_ptr<slurm_conf_t, FreeConf> conf(raw);
    return rc == SLURM_SUCCESS && conf ? conf->preempt_mode : std::uint16_t{PREEMPT_MODE_REQUEUE};
}

std::uint16_t preempt_mode_in(const std::string &partition) {
    partition_info_msg_t *raw = nullptr;
    int rc = ::slurm_load_partitions(0, &raw, SHOW_ALL);
    Partitions all(raw);
    for (std::uint32_t i = 0; rc == SLURM_SUCCESS && all && i < all->record_count; ++i) {
        const partition_info_t &one = all->partition_array[i];
        if (text_of(one.name) == partition && one.preempt_mode != NO_VAL16) return one.preempt_mode;
    }
    return preempt_mode();
}

/// Where Slurm would cancel it, or hold it for a while, it is not ours to requeue. A mode that only a QOS has
/// is not looked at.
bool is_preempted(const slurm_job_info_t &job) {
    if (job.preempt_time == 0 || !is_running(job) || job.batch_flag == 0 || job.requeue == 0) return false;
    return (preempt_mode_in(text_of(job.partition)) & PREEMPT_MODE_REQUEUE) != 0;
}

SlurmJob convert(const slurm_job_info_t &job) {
    SlurmJob result;
    result.running = is_running(job);
    result.waiting = (job.job_state & JOB_STATE_BASE) == JOB_PENDING;
    result.preempted = is_preempted(job);
    result.uid = job.user_id;
    result.gid = job.group_id;
    result.restart_count = job.restart_cnt;
    result.array_job_id = job.array_job_id;
    if (job.array_job_id != 0 && job.array_task_id != NO_VAL) result.array_task_id = job.array_task_id;
    result.user = user_name(job);
    result.batch_host = text_of(job.batch_host);
    result.nodes = expand(job.nodes);
    result.end_time = job.end_time;
    result.is_tied = result.waiting && !text_of(job.req_nodes).empty();
    result.mark = find_mark(text_of(job.admin_comment));
    result.left = find_left_marks(text_of(job.admin_comment));
    result.grown = find_grown(text_of(job.admin_comment));
    return result;
}

/// The record of this very job among those of its array.
const slurm_job_info_t *find(const Jobs &jobs, JobId id) {
    for (std::uint32_t i = 0; i < jobs->record_count; ++i)
        if (jobs->job_array[i].job_id == id.value()) return &jobs->job_array[i];
    return nullptr;
}

std::vector<char *> pointers(std::vector<std::string> &words) {
    std::vector<char *> result;
    for (auto &word : words) result.push_back(word.data());
    return result;
}

/// As much as the group has. None left: not a minute.
Result<std::uint32_t> minutes_left(const slurm_job_info_t &job) {
    if (job.time_limit == INFINITE) return std::uint32_t{INFINITE};
    auto left = (job.end_time - std::time(nullptr)) / 60;
    if (left < 1) return Status(Code::invalid_argument, "its time is nearly over");
    return static_cast<std::uint32_t>(std::min<std::int64_t>(left, NO_VAL - 1));
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

/// The main job's resources for each node. Pointers into `job` stay Slurm's.
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

/// On whose behalf, and on what terms.
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

/// The main job's own nodes, and those that its user does not want.
std::vector<std::string> excluded_nodes(const CompanionOrder &order, const slurm_job_info_t &job) {
    std::vector<std::string> nodes = order.excluded;
    for (std::string &name : expand(job.exc_nodes)) nodes.push_back(std::move(name));
    std::sort(nodes.begin(), nodes.end());
    nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
    return nodes;
}

bool has_word(const std::string &list, const std::string &word) {
    return ("," + list + ",").find("," + word + ",") != std::string::npos;
}

/// Of "socket=/run/munge,cred_expire=5".
std::uint32_t number_after(const std::string &list, const std::string &key, std::uint32_t otherwise) {
    auto at = ("," + list).find("," + key + "=");
    if (at == std::string::npos) return otherwise;
    int number = std::atoi(list.c_str() + at + key.size() + 1);
    return number > 0 ? static_cast<std::uint32_t>(number) : otherwise;
}

/// "switch/hpe_slingshot" -> "hpe_slingshot"
std::string switch_of(const std::string &type) {
    std::string name = type.substr(type.find('/') + 1);
    return name == "none" || name == "(null)" ? "" : name;
}

SiteCapabilities convert(const slurm_conf_t &conf) {
    SiteCapabilities site;
    std::string scheduler = text_of(conf.sched_params);
    site.version = text_of(conf.version);
    site.database = text_of(conf.accounting_storage_type).find("slurmdbd") != std::string::npos;
    site.job_expansion = has_word(scheduler, "permit_job_expansion");
    site.job_shrink = !has_word(scheduler, "disable_job_shrink");
    site.contain = (conf.prolog_flags & PROLOG_FLAG_CONTAIN) != 0;
    site.node_changes = ::geteuid() == 0 || ::geteuid() == conf.slurm_user_id;
    site.requeue = conf.job_requeue != 0;
    site.slurmd_timeout_s = conf.slurmd_timeout;
    site.kill_wait_s = conf.kill_wait;
    site.cred_expire_s = number_after(text_of(conf.authinfo), "cred_expire", site.cred_expire_s);
    site.switch_type = switch_of(text_of(conf.switch_type));
    return site;
}

/// Which leaf switch each node hangs on, by topology.conf. None where the site has no such topology, or this
/// Slurm tells of it in another way.
class Topology {
  public:
    void name_switches(std::vector<NodeAddress> &nodes) {
        load();
        for (NodeAddress &node : nodes)
            if (auto found = leaves_.find(node.node); found != leaves_.end())
                node.leaf_switch = found->second;
    }

  private:
    using Clock = std::chrono::steady_clock;
    static constexpr auto valid = std::chrono::minutes(10);

    void load() {
#ifdef HAVE_SLURM_TOPOLOGY_ARRAY
        if (loaded_ && Clock::now() - *loaded_ < valid) return;
        topo_info_response_msg_t *raw = nullptr;
        if (::slurm_load_topo(&raw) != SLURM_SUCCESS) return;  // what was known still is
        std::unique_ptr<topo_info_response_msg_t, FreeTopology> topology(raw);
        loaded_ = Clock::now();
        leaves_.clear();
        for (std::uint32_t i = 0; topology && i < topology->record_count; ++i) {
            const topo_info_t &entry = topology->topo_array[i];
            if (entry.level != 0 || !entry.name) continue;
            for (std::string &node : expand(entry.nodes)) leaves_.emplace(std::move(node), entry.name);
        }
#endif
    }

    std::map<std::string, std::string> leaves_;
    std::optional<Clock::time_point> loaded_;
};

class LibSlurmCalls final : public SlurmCalls {
  public:
    Result<SlurmJob> load_job(JobId id) override {
        Jobs jobs;
        DLROVER_TRY(fetch(id, jobs));
        return convert(*find(jobs, id));
    }

    Result<std::vector<SlurmJob>> load_jobs_of(std::uint32_t uid) override {
        job_info_msg_t *raw = nullptr;
        int rc = uid == 0 ? ::slurm_load_jobs(0, &raw, SHOW_ALL) : ::slurm_load_job_user(&raw, uid, SHOW_ALL);
        Jobs jobs(raw);
        if (rc != SLURM_SUCCESS) return failure("the list of jobs");
        std::vector<SlurmJob> running;
        for (std::uint32_t i = 0; jobs && i < jobs->record_count; ++i)
            if (is_running(jobs->job_array[i])) running.push_back(convert(jobs->job_array[i]));
        return running;
    }

    Result<SlurmStep> load_step(JobId job, StepId step) override {
        auto loaded = load_job(job);
        if (!loaded) return loaded.take_status();
        job_step_info_response_msg_t *raw = nullptr;
        int rc = ::slurm_get_job_steps(0, job.value(), step.value(), &raw, SHOW_ALL);
        Steps steps(raw);
        if (rc != SLURM_SUCCESS) return failure(name_of(job) + ", its steps");
        for (std::uint32_t i = 0; steps && i < steps->job_step_count; ++i) {
            const job_step_info_t &info = steps->job_steps[i];
            if (info.step_id.job_id != job.value() || info.step_id.step_id != step.value()) continue;
            return SlurmStep{std::move(*loaded), expand(info.nodes)};
        }
        return Status(Code::not_found, name_of(job) + " has no step " + std::to_string(step.value()));
    }

    Result<std::vector<NodeAddress>> load_addresses(const std::vector<std::string> &names) override {
        std::vector<NodeAddress> addresses;
        if (names.size() > few_nodes) {
            DLROVER_TRY(add_from_all(names, addresses));
        } else {
            for (const auto &name : names) DLROVER_TRY(add_one(name, addresses));
        }
        if (addresses.empty()) return Status(Code::not_found, "Slurm knows none of these nodes");
        topology_.name_switches(addresses);
        return addresses;
    }

    /// Slurm takes it only while the survivors are a part of the job's nodes: a compare-and-swap.
    Status shrink_job(JobId id, const std::vector<std::string> &survivors) override {
        // Of a job that waits, the same message would set the nodes it asks for.
        Jobs jobs;
        DLROVER_TRY(fetch(id, jobs));
        if (!is_running(*find(jobs, id)))
            return Status(Code::invalid_argument, name_of(id) + " does not run");
        if (is_closed(*find(jobs, id)))
            return Status(Code::unavailable,
                          name_of(id) +
                              " has lost nodes before, and without slurmdbd Slurm changes a job's "
                              "size only once; it gives the node up after SlurmdTimeout");
        std::string nodes = join(survivors);
        job_desc_msg_t update;
        ::slurm_init_job_desc_msg(&update);
        update.job_id = id.value();
        update.req_nodes = nodes.data();
        Status status = send(id, update, "shrink to " + nodes);
        if (!status.ok() && ::slurm_get_errno() == ESLURM_NOT_SUPPORTED)
            return Status(Code::unsupported, name_of(id) +
                                                 " can not lose nodes in this cluster (disable_job_shrink); "
                                                 "Slurm gives the node up after SlurmdTimeout");
        // Right after a change. slurmctld has waited for its database itself, 5 s.
        if (!status.ok() && ::slurm_get_errno() == ESLURM_JOB_SETTING_DB_INX)
            return Status(Code::unavailable, status.message());
        // A survivor that is no longer the job's.
        if (status.code() == Code::not_found) return Status(Code::invalid_argument, status.message());
        return status;
    }

    Status requeue_job(JobId id) override {
        if (::slurm_requeue(id.value(), 0) != SLURM_SUCCESS) return failure("requeue " + name_of(id));
        return {};
    }

    Result<bool> complete_headless(JobId id, const HeadlessEnd &end) override {
        Jobs jobs;
        Status found = fetch(id, jobs);
        if (found.code() == Code::not_found) return true;
        DLROVER_TRY(std::move(found));
        const slurm_job_info_t &job = *find(jobs, id);
        if (!is_running(job) || job.restart_cnt != end.restart_count || job.batch_flag == 0) return true;
        auto nodes = expand(job.nodes);
        std::string host = text_of(job.batch_host);
        bool has_host = host.empty() || std::find(nodes.begin(), nodes.end(), host) != nodes.end();
        if (end.anyhow && has_host && !is_silent(host)) return false;  // its script goes on, or ends the job
        if (!end.anyhow) {
            if (has_host) return false;
            auto steps = has_steps(id, end.over);
            if (!steps) return steps.take_status();
            if (*steps) return false;
        }
        // As from wait(2).
        auto status = static_cast<std::uint32_t>(end.exit_code & 0xff) << 8;
        if (::slurm_complete_job(id.value(), status) != SLURM_SUCCESS)
            return failure("complete " + name_of(id));
        return true;
    }

    Result<Hastened> hasten_job(JobId id, const HastenOrder &order) override {
        Jobs jobs;
        DLROVER_TRY(fetch(id, jobs));
        const slurm_job_info_t &job = *find(jobs, id);
        auto base = job.job_state & JOB_STATE_BASE;
        if (base == JOB_PENDING && (job.job_state & JOB_COMPLETING) != 0)
            return Status(Code::unavailable, "the last run is still ending");
        if (base != JOB_PENDING && base != JOB_RUNNING) return Status(Code::stale, "it does not wait");
        if (base == JOB_RUNNING) return Hastened::starts;
        auto preferred = find_idle(order.preferred, order.anyhow);
        if (!preferred) return preferred.take_status();
        if (!*preferred) return Hastened::too_early;
        auto names = expand(job.exc_nodes);
        names.insert(names.end(), order.excluded.begin(), order.excluded.end());
        std::sort(names.begin(), names.end());
        names.erase(std::unique(names.begin(), names.end()), names.end());
        std::string nodes = join(names), wanted = join(**preferred);
        job_desc_msg_t update;
        ::slurm_init_job_desc_msg(&update);
        update.job_id = id.value();
        update.begin_time = std::time(nullptr);
        if (!order.excluded.empty()) update.exc_nodes = nodes.data();
        // Also what a shrink has left, which would tie the next run to nodes that may be gone.
        if (!wanted.empty() || (job.req_nodes && *job.req_nodes)) update.req_nodes = wanted.data();
        DLROVER_TRY(send(id, update, "hasten"));
        return wanted.empty() ? Hastened::starts : Hastened::tied;
    }

    Result<JobId> submit_companion(const CompanionOrder &order) override {
        OneNode node;
        DLROVER_TRY(prepare(order, node));
        auto submitted = submit(order, node.cpus_per_task, companion_output(*node.job), node.desc);
        if (!submitted) return submitted;
        Status marked =
            mark_companion(*submitted, companion_mark(order.job, order.step, order.restart_count));
        if (marked.ok()) return submitted;
        (void)cancel_job(*submitted).ok();  // nobody would find it again
        return marked;
    }

    Result<Growth> grow_job(const CompanionOrder &order) override {
        OneNode node;
        DLROVER_TRY(prepare(order, node));
        auto granted = allocate(order, node);
        if (!granted) return granted.take_status();
        Status merged = move_in(order, node, granted->first, granted->second);
        if (merged.ok()) return Growth{granted->second, node.cpus_per_task};
        (void)cancel_job(granted->first).ok();  // where it is not known here, it ends within a minute
        return merged;
    }

    Result<std::vector<Companion>> load_companions(std::uint32_t uid, const std::string &mark) override {
        job_info_msg_t *raw = nullptr;
        int rc = ::slurm_load_job_user(&raw, uid, SHOW_ALL);
        Jobs jobs(raw);
        if (rc != SLURM_SUCCESS) return failure("the user's jobs");
        std::vector<Companion> found;
        for (std::uint32_t i = 0; jobs && i < jobs->record_count; ++i) {
            const slurm_job_info_t &job = jobs->job_array[i];
            bool waits = (job.job_state & JOB_STATE_BASE) == JOB_PENDING;
            if (job.user_id != uid || (!waits && !is_running(job)) ||
                find_mark(text_of(job.admin_comment)) != mark)
                continue;
            found.push_back({JobId(job.job_id), waits, has_word(text_of(job.admin_comment), expands_word),
                             waits ? std::vector<std::string>{} : expand(job.nodes)});
        }
        return found;
    }

    /// What a site has written there stays.
    Status mark_companion(JobId id, const std::string &mark) override {
        Jobs jobs;
        DLROVER_TRY(fetch(id, jobs));
        std::string comment = text_of(find(jobs, id)->admin_comment);
        if (!find_mark(comment).empty())
            return Status(Code::permission_denied, name_of(id) + " is another group's already");
        return add_to_comment(id, comment, mark);
    }

    Status mark_left(JobId id, std::uint32_t restart_count, const std::vector<std::string> &marks) override {
        Jobs jobs;
        DLROVER_TRY(fetch(id, jobs));
        const slurm_job_info_t &job = *find(jobs, id);
        if (!is_running(job) || job.restart_cnt != restart_count)
            return Status(Code::stale, name_of(id) + " does not run any more");
        if (is_closed(job))
            return Status(Code::invalid_argument,
                          name_of(id) + " has lost nodes before, and without slurmdbd it takes no word");
        std::string comment = text_of(job.admin_comment);
        auto there = find_left_marks(comment);
        std::string missing;
        for (const std::string &mark : marks)
            if (std::find(there.begin(), there.end(), mark) == there.end())
                missing += (missing.empty() ? "" : " ") + mark;
        return missing.empty() ? Status() : add_to_comment(id, comment, missing);
    }

    Status cancel_job(JobId id) override {
        if (::slurm_kill_job(id.value(), SIGKILL, 0) == SLURM_SUCCESS) return {};
        bool over = ::slurm_get_errno() == ESLURM_ALREADY_DONE;
        return over ? Status() : failure("cancel " + name_of(id));
    }

    Status drain_node(const std::string &node, const std::string &reason) override {
        node_info_msg_t *raw = nullptr;
        std::string name = node, why = reason;
        int rc = ::slurm_load_node_single(&raw, name.data(), SHOW_ALL);
        Nodes nodes(raw);
        if (rc != SLURM_SUCCESS || !nodes || nodes->record_count == 0) return failure("node " + node);
        if ((nodes->node_array[0].node_state & NODE_STATE_DRAIN) != 0) return {};
        update_node_msg_t update;
        ::slurm_init_update_node_msg(&update);
        update.node_names = name.data();
        update.node_state = NODE_STATE_DRAIN;
        update.reason = why.data();
        if (::slurm_update_node(&update) != SLURM_SUCCESS) return failure("drain " + node);
        return {};
    }

    Result<SiteCapabilities> load_site() override {
        slurm_conf_t *raw = nullptr;
        int rc = ::slurm_load_ctl_conf(0, &raw);
        std::unique_ptr<slurm_conf_t, FreeConf> conf(raw);
        if (rc != SLURM_SUCCESS || !conf) return failure("Slurm's configuration");
        return convert(*conf);
    }

    std::string cluster_name() override { return setting(&slurm_conf_t::cluster_name); }

  private:
    /// Without slurmdbd slurmctld keeps who would change a job that was resized for 5 s, and refuses.
    bool is_closed(const slurm_job_info_t &job) { return job.resize_time != 0 && !has_database(); }

    static Status add_to_comment(JobId id, std::string comment, const std::string &word) {
        comment += (comment.empty() ? "" : " ") + word;
        if (comment.size() > longest_comment)
            return Status(Code::invalid_argument, name_of(id) + " has no room for it in its AdminComment");
        job_desc_msg_t update;
        ::slurm_init_job_desc_msg(&update);
        update.job_id = id.value();
        update.admin_comment = comment.data();
        return send(id, update, "comment");
    }

    /// Of programs: not the batch script's, nor Slurm's own.
    /// Where the batch host was lost while a step ended on it, Slurm may keep that step for ever.
    static Result<bool> has_steps(JobId id, std::optional<StepId> but_for) {
        job_step_info_response_msg_t *raw = nullptr;
        int rc = ::slurm_get_job_steps(0, id.value(), NO_VAL, &raw, SHOW_ALL);
        Steps steps(raw);
        if (rc != SLURM_SUCCESS) {
            Status failed = failure(name_of(id) + ", its steps");
            if (failed.code() == Code::not_found) return false;
            return failed;
        }
        for (std::uint32_t i = 0; steps && i < steps->job_step_count; ++i) {
            const auto &step = steps->job_steps[i].step_id;
            bool counts = step.step_id <= SLURM_MAX_NORMAL_STEP_ID && but_for != StepId(step.step_id);
            if (step.job_id == id.value() && counts) return true;
        }
        return false;
    }
    static std::string setting(char *slurm_conf_t::*name) {
        if (&slurm_conf && slurm_conf.*name) return slurm_conf.*name;
        slurm_conf_t *raw = nullptr;
        int rc = ::slurm_load_ctl_conf(0, &raw);
        std::unique_ptr<slurm_conf_t, FreeConf> conf(raw);
        return rc == SLURM_SUCCESS && conf ? text_of((*conf).*name) : "";
    }

    /// Where that can not be told Slurm is asked all the same.
    static bool has_database() {
        std::string type = setting(&slurm_conf_t::accounting_storage_type);
        return type.empty() || type.find("slurmdbd") != std::string::npos;
    }

    static Status fetch(JobId id, Jobs &jobs) {
        job_info_msg_t *raw = nullptr;
        int rc = ::slurm_load_job(&raw, id.value(), SHOW_ALL);
        jobs.reset(raw);
        if (rc != SLURM_SUCCESS) return failure(name_of(id));
        if (!jobs || !find(jobs, id)) return Status(Code::not_found, name_of(id) + " is not known to Slurm");
        return {};
    }

    /// What Slurm is asked for, on whose terms. The pointers in `desc` are into the rest of it.
    struct OneNode {
        Jobs jobs;
        slurm_job_info_t *job = nullptr;
        std::uint32_t cpus_per_task = 1;
        std::string excluded;
        job_desc_msg_t desc;
    };
    static Status prepare(const CompanionOrder &order, OneNode &out) {
        DLROVER_TRY(fetch(order.job, out.jobs));
        out.job = const_cast<slurm_job_info_t *>(find(out.jobs, order.job));
        auto cpus = cpus_per_task(order);
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
    static Result<std::pair<JobId, std::string>> allocate(const CompanionOrder &order, OneNode &node) {
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
    static Status move_in(const CompanionOrder &order, const OneNode &node, JobId from,
                          const std::string &name) {
        job_desc_msg_t update;
        ::slurm_init_job_desc_msg(&update);
        update.job_id = from.value();
        update.time_limit = 1;
        DLROVER_TRY(send(from, update, "its time"));
        std::string comment =
            add_grown(text_of(node.job->admin_comment), grown_mark(order.step, order.restart_count, name),
                      expand(node.job->nodes));
        ::slurm_init_job_desc_msg(&update);
        update.job_id = order.job.value();
        update.admin_comment = comment.data();
        DLROVER_TRY(send(order.job, update, "comment"));
        ::slurm_init_job_desc_msg(&update);
        update.job_id = from.value();
        update.min_nodes = 0;
        return send(from, update, "its node for " + name_of(order.job));
    }

    static Status check_main(const CompanionOrder &order, const slurm_job_info_t &job) {
        if (!is_running(job) || job.restart_cnt != order.restart_count)
            return Status(Code::invalid_argument, name_of(order.job) + " does not run any more");
        if (!text_of(job.tres_per_job).empty())
            return Status(Code::invalid_argument,
                          "the job asks for " + text_of(job.tres_per_job) +
                              " in all (as by --gpus): Slurm does not say what one node of it needs; ask for "
                              "them by the node (--gpus-per-node)");
        return {};
    }

    /// As the step has them.
    static Result<std::uint32_t> cpus_per_task(const CompanionOrder &order) {
        job_step_info_response_msg_t *raw = nullptr;
        int rc = ::slurm_get_job_steps(0, order.job.value(), order.step.value(), &raw, SHOW_ALL);
        Steps steps(raw);
        if (rc != SLURM_SUCCESS) return failure(name_of(order.job) + ", its steps");
        for (std::uint32_t i = 0; steps && i < steps->job_step_count; ++i) {
            const job_step_info_t &step = steps->job_steps[i];
            if (step.step_id.job_id != order.job.value() || step.step_id.step_id != order.step.value())
                continue;
            std::uint32_t tasks = std::max(step.num_tasks, std::uint32_t{1});
            return std::clamp<std::uint32_t>(step.num_cpus / tasks, 1, UINT16_MAX - 2);
        }
        return Status(Code::invalid_argument, name_of(order.job) + " has no such step any more");
    }

    static Result<JobId> submit(const CompanionOrder &order, std::uint32_t cpus, std::string output,
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

    static Status send(JobId id, job_desc_msg_t &update, const std::string &what) {
        if (::slurm_update_job(&update) != SLURM_SUCCESS) return failure(name_of(id) + ", " + what);
        return {};
    }

    /// Slurm has not heard it lately, or has given it up.
    static bool is_silent(const std::string &name) {
        node_info_msg_t *raw = nullptr;
        std::string copy = name;
        int rc = ::slurm_load_node_single(&raw, copy.data(), SHOW_ALL);
        Nodes nodes(raw);
        if (rc != SLURM_SUCCESS || !nodes || nodes->record_count == 0) return false;
        auto state = nodes->node_array[0].node_state;
        return (state & NODE_STATE_NO_RESPOND) != 0 || (state & NODE_STATE_BASE) == NODE_STATE_DOWN;
    }

    /// Those of them that a job can have now. None: some are still ending, or have not answered Slurm lately;
    /// `anyhow`: they are left out.
    static Result<std::optional<std::vector<std::string>>> find_idle(const std::vector<std::string> &names,
                                                                     bool anyhow) {
        std::vector<std::string> idle;
        if (names.empty()) return std::optional(idle);
        node_info_msg_t *raw = nullptr;
        int rc = ::slurm_load_node(0, &raw, SHOW_ALL);
        Nodes nodes(raw);
        if (rc != SLURM_SUCCESS) return failure("nodes");
        constexpr auto unwanted = NODE_STATE_DRAIN | NODE_STATE_FAIL;
        for (std::uint32_t i = 0; nodes && i < nodes->record_count; ++i) {
            std::string name = text_of(nodes->node_array[i].name);
            auto state = nodes->node_array[i].node_state, base = state & NODE_STATE_BASE;
            bool ours = std::find(names.begin(), names.end(), name) != names.end();
            if (!ours || base == NODE_STATE_DOWN || (state & unwanted) != 0) continue;
            bool is_early = (state & (NODE_STATE_COMPLETING | NODE_STATE_NO_RESPOND)) != 0;
            if (is_early && !anyhow) return std::optional<std::vector<std::string>>();
            if (!is_early && (base == NODE_STATE_IDLE || base == NODE_STATE_MIXED)) idle.push_back(name);
        }
        return std::optional(idle);
    }

    static Status add_one(const std::string &name, std::vector<NodeAddress> &addresses) {
        node_info_msg_t *raw = nullptr;
        std::string copy = name;
        int rc = ::slurm_load_node_single(&raw, copy.data(), SHOW_ALL);
        Nodes nodes(raw);
        if (rc != SLURM_SUCCESS && code_of(::slurm_get_errno()) == Code::not_found) return {};
        if (rc != SLURM_SUCCESS) return failure("node " + name);
        add_matching(nodes, {name}, addresses);
        return {};
    }

    static Status add_from_all(std::vector<std::string> names, std::vector<NodeAddress> &addresses) {
        node_info_msg_t *raw = nullptr;
        int rc = ::slurm_load_node(0, &raw, SHOW_ALL);
        Nodes nodes(raw);
        if (rc != SLURM_SUCCESS) return failure("nodes");
        std::sort(names.begin(), names.end());
        add_matching(nodes, names, addresses);
        return {};
    }

    static void add_matching(const Nodes &nodes, const std::vector<std::string> &sorted_names,
                             std::vector<NodeAddress> &addresses) {
        for (std::uint32_t i = 0; nodes && i < nodes->record_count; ++i) {
            const node_info_t &node = nodes->node_array[i];
            if (!node.name || !node.node_addr) continue;
            if (std::binary_search(sorted_names.begin(), sorted_names.end(), std::string(node.name)))
                addresses.push_back({node.name, node.node_addr, node.mem_spec_limit << 20});
        }
    }

    Topology topology_;
};

}  // namespace

std::shared_ptr<SlurmCalls> make_libslurm_calls(const std::string &conf) {
#ifdef HAVE_SLURM_INIT
    ::slurm_init(conf.empty() ? nullptr : conf.c_str());
#else
    if (!conf.empty()) ::setenv("SLURM_CONF", conf.c_str(), 1);
#endif
    return std::make_shared<LibSlurmCalls>();
}

}  // namespace dlrover::daemon
