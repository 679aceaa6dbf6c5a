// SPDX-License-Identifier: Apache-2.0
#include "config.h"

#include <pwd.h>
#include <slurm/slurm_errno.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "common/log.h"
#include "daemon/companion.h"
#include "daemon/slurm_api.h"
#include "daemon/slurm_client.h"
#include "daemon/slurm_companions.h"
#include "daemon/slurm_nodes.h"

/// libslurm's parsed configuration. Not in its public header, so it may be missing: then slurmctld is asked.
extern "C" slurm_conf_t slurm_conf __attribute__((weak));

namespace dlrover::daemon {
namespace {

std::string user_name(const slurm_job_info_t &job) {
    if (job.user_name && *job.user_name) return job.user_name;
    passwd entry{}, *found = nullptr;
    char buffer[4096];
    if (::getpwuid_r(job.user_id, &entry, buffer, sizeof buffer, &found) == 0 && found) return entry.pw_name;
    return std::to_string(job.user_id);
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
    result.waiting = is_waiting(job);
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
    result.has_excluded = result.waiting && !find_excluded(text_of(job.admin_comment)).empty();
    result.is_held_off =
        result.waiting && (job.state_reason == WAIT_TIME || job.eligible_time > std::time(nullptr));
    result.mark = find_mark(text_of(job.admin_comment));
    result.left = find_left_marks(text_of(job.admin_comment));
    result.grown = find_grown(text_of(job.admin_comment));
    result.lost_before = find_lost(text_of(job.admin_comment), job.restart_cnt);
    return result;
}

struct Exclusions {
    std::set<std::string> all;   ///< in the job's ExcNodeList
    std::set<std::string> ours;  ///< of those, which its group has put there, not its user
};

Exclusions exclusions_of(const slurm_job_info_t &job) {
    auto names = expand(job.exc_nodes);
    auto marked = find_excluded(text_of(job.admin_comment));
    Exclusions found{{names.begin(), names.end()}, std::move(marked)};
    std::erase_if(found.ours, [&](const std::string &node) { return !found.all.contains(node); });
    return found;
}

Exclusions change(Exclusions exclusions, bool frees, const std::vector<std::string> &excluded) {
    if (frees)
        for (const std::string &node : std::exchange(exclusions.ours, {})) exclusions.all.erase(node);
    for (const std::string &node : excluded)
        if (exclusions.all.insert(node).second) exclusions.ours.insert(node);
    return exclusions;
}

/// They are checked where the next run gets them all the same. Each node that was left may say which it
/// knows.
std::string note_lost(const std::string &comment, const HastenOrder &order) {
    std::vector<std::string> lost = find_lost(comment, order.restart_count);
    for (const std::string &node : order.suspects)
        if (std::ranges::find(lost, node) == lost.end()) lost.push_back(node);
    return lost.empty() ? comment : put_lost(comment, order.restart_count, lost);
}

/// Of options that commas part.
bool has_option(const std::string &list, const std::string &word) {
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
    site.job_expansion = has_option(scheduler, "permit_job_expansion");
    site.job_shrink = !has_option(scheduler, "disable_job_shrink");
    site.contain = (conf.prolog_flags & PROLOG_FLAG_CONTAIN) != 0;
    site.node_changes = ::geteuid() == 0 || ::geteuid() == conf.slurm_user_id;
    site.requeue = conf.job_requeue != 0;
    site.slurmd_timeout_s = conf.slurmd_timeout;
    site.kill_wait_s = conf.kill_wait;
    site.cred_expire_s = number_after(text_of(conf.authinfo), "cred_expire", site.cred_expire_s);
    site.switch_type = switch_of(text_of(conf.switch_type));
    return site;
}

class LibSlurmCalls final : public SlurmCalls {
  public:
    Result<SlurmJob> load_job(JobId id) override {
        Jobs jobs;
        DLROVER_TRY(fetch_job(id, jobs));
        return convert(*find_job(jobs, id));
    }

    Result<std::vector<SlurmJob>> load_jobs_of(std::uint32_t uid) override {
        auto jobs = daemon::load_jobs_of(uid);
        if (!jobs) return jobs.take_status();
        std::vector<SlurmJob> running;
        for (const slurm_job_info_t &job : records(*jobs))
            if (is_running(job)) running.push_back(convert(job));
        return running;
    }

    Result<SlurmStep> load_step(JobId job, StepId step) override {
        auto loaded = load_job(job);
        if (!loaded) return loaded.take_status();
        auto steps = load_steps(job, step.value());
        if (!steps) return steps.take_status();
        for (std::uint32_t i = 0; *steps && i < (*steps)->job_step_count; ++i) {
            const job_step_info_t &info = (*steps)->job_steps[i];
            if (info.step_id.job_id != job.value() || info.step_id.step_id != step.value()) continue;
            return SlurmStep{std::move(*loaded), expand(info.nodes)};
        }
        return Status(Code::not_found, name_of(job) + " has no step " + std::to_string(step.value()));
    }

    Result<std::vector<NodeAddress>> load_addresses(const std::vector<std::string> &names) override {
        auto addresses = find_addresses(names);
        if (!addresses) return addresses;
        if (addresses->empty()) return Status(Code::not_found, "Slurm knows none of these nodes");
        topology_.name_switches(*addresses);
        return addresses;
    }

    /// Slurm takes it only while the survivors are a part of the job's nodes: a compare-and-swap.
    Status shrink_job(JobId id, const std::vector<std::string> &survivors) override {
        // Of a job that waits, the same message would set the nodes it asks for.
        Jobs jobs;
        DLROVER_TRY(fetch_job(id, jobs));
        if (!is_running(*find_job(jobs, id)))
            return Status(Code::invalid_argument, name_of(id) + " does not run");
        if (is_closed(*find_job(jobs, id)))
            return Status(Code::unavailable,
                          name_of(id) +
                              " has lost nodes before, and without slurmdbd Slurm changes a job's "
                              "size only once; it gives the node up after SlurmdTimeout");
        std::string nodes = join(survivors);
        job_desc_msg_t update;
        ::slurm_init_job_desc_msg(&update);
        update.job_id = id.value();
        update.req_nodes = nodes.data();
        Status status = send_update(id, update, "shrink to " + nodes);
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
        Status found = fetch_job(id, jobs);
        if (found.code() == Code::not_found) return true;
        DLROVER_TRY(std::move(found));
        const slurm_job_info_t &job = *find_job(jobs, id);
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
        if (end.again) {
            Status again = requeue_job(id);
            if (again.ok() || again.code() == Code::stale) return true;
            if (again.code() == Code::unavailable || again.code() == Code::timeout) return again;
        }
        // As from wait(2).
        auto status = static_cast<std::uint32_t>(end.exit_code & 0xff) << 8;
        if (::slurm_complete_job(id.value(), status) != SLURM_SUCCESS)
            return failure("complete " + name_of(id));
        return true;
    }

    Result<Hastened> hasten_job(JobId id, const HastenOrder &order) override {
        Jobs jobs;
        DLROVER_TRY(fetch_job(id, jobs));
        const slurm_job_info_t &job = *find_job(jobs, id);
        auto base = job.job_state & JOB_STATE_BASE;
        if (base == JOB_PENDING && (job.job_state & JOB_COMPLETING) != 0) return put_off(id, job, order);
        if (base != JOB_PENDING && base != JOB_RUNNING) return Status(Code::stale, "it does not wait");
        if (base == JOB_RUNNING) return Hastened::starts;
        if (job.restart_cnt > order.restart_count)
            return Status(Code::stale, name_of(id) + " has run again since");
        auto preferred = find_idle(order.preferred, order.anyhow);
        if (!preferred) return preferred.take_status();
        if (!*preferred) return Hastened::too_early;
        return send_next_run(id, job, order, **preferred);
    }

    Result<JobId> submit_companion(const CompanionOrder &order) override {
        return submit_companion_job(order);
    }

    Result<Growth> grow_job(const CompanionOrder &order) override { return grow_main_job(order); }

    Result<std::vector<Companion>> load_companions(std::uint32_t uid, const std::string &mark) override {
        return find_companions(uid, mark);
    }

    Status mark_companion(JobId id, const std::string &mark) override { return mark_as_companion(id, mark); }

    Status mark_left(JobId id, std::uint32_t restart_count, const std::vector<std::string> &marks) override {
        Jobs jobs;
        DLROVER_TRY(fetch_job(id, jobs));
        const slurm_job_info_t &job = *find_job(jobs, id);
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

    Status cancel_job(JobId id) override { return kill_job(id); }

    Status drain_node(const std::string &node, const std::string &reason) override {
        return drain(node, reason);
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
    /// Slurm waits for SlurmdTimeout where it could not take a node out that is gone (disable_job_shrink, or
    /// no slurmdbd after another loss), and may start the next run, on any nodes, in the moment in which that
    /// is over. A start a little later stays Slurm's own, should nobody come to hasten it.
    static Result<Hastened> put_off(JobId id, const slurm_job_info_t &job, const HastenOrder &order) {
        constexpr std::time_t least = 15, usual = 30;
        std::time_t now = std::time(nullptr);
        if (!order.hastens || job.restart_cnt > order.restart_count || job.eligible_time >= now + least)
            return Hastened::ending;
        job_desc_msg_t update;
        ::slurm_init_job_desc_msg(&update);
        update.job_id = id.value();
        update.begin_time = now + usual;
        DLROVER_TRY(send_update(id, update, "put off"));
        return Hastened::ending;
    }

    static Result<Hastened> send_next_run(JobId id, const slurm_job_info_t &job, const HastenOrder &order,
                                          const std::vector<std::string> &preferred) {
        std::string comment = text_of(job.admin_comment), wanted = join(preferred);
        Exclusions before = exclusions_of(job), after = change(before, order.frees, order.excluded);
        std::string marked = note_lost(put_excluded(comment, after.ours), order);
        if (marked.size() > longest_comment) marked = put_excluded(comment, after.ours);
        if (marked.size() > longest_comment) {
            log::warning("slurm: " + name_of(id) +
                         " has an AdminComment that leaves no room: nodes that its last run has lost are "
                         "neither excluded from the next one nor checked in it");
            after = change(before, order.frees, {});  // who would ever free them?
            marked = put_excluded(comment, after.ours);
        }
        std::string nodes = join(after.all);
        job_desc_msg_t update;
        ::slurm_init_job_desc_msg(&update);
        update.job_id = id.value();
        if (order.hastens) update.begin_time = std::time(nullptr);
        if (after.all != before.all) update.exc_nodes = nodes.data();
        // Also a mark of nodes that somebody has freed by hand.
        bool is_noted = find_lost(comment, order.restart_count) == find_lost(marked, order.restart_count);
        if (find_excluded(comment) != after.ours || !is_noted) update.admin_comment = marked.data();
        // Also what a shrink has left, which would tie the next run to nodes that may be gone.
        if (order.hastens && (!wanted.empty() || (job.req_nodes && *job.req_nodes)))
            update.req_nodes = wanted.data();
        if (!order.hastens && update.exc_nodes == nullptr && update.admin_comment == nullptr)
            return Hastened::starts;
        DLROVER_TRY(send_update(id, update, "hasten"));
        if (order.frees && order.excluded.empty() && !before.ours.empty())
            log::info("slurm: " + name_of(id) + " still waits: nodes that its last run has lost, " +
                      join(before.ours) + ", are no longer excluded from it");
        return wanted.empty() ? Hastened::starts : Hastened::tied;
    }

    /// Without slurmdbd slurmctld keeps who would change a job that was resized for 5 s, and refuses.
    bool is_closed(const slurm_job_info_t &job) { return job.resize_time != 0 && !has_database(); }

    /// Of programs: not the batch script's, nor Slurm's own. `but_for`: where the batch host was lost while a
    /// step ended on it, Slurm may keep that step for ever.
    static Result<bool> has_steps(JobId id, std::optional<StepId> but_for) {
        auto steps = load_steps(id, NO_VAL);
        if (!steps && steps.status().code() == Code::not_found) return false;
        if (!steps) return steps.take_status();
        for (std::uint32_t i = 0; *steps && i < (*steps)->job_step_count; ++i) {
            const auto &step = (*steps)->job_steps[i].step_id;
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
