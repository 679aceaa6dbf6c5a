// SPDX-License-Identifier: Apache-2.0
#include "daemon/site.h"

#include "common/log.h"

namespace dlrover::daemon {
namespace {

using local::FactState;

constexpr EventLoop::Time ask_again = std::chrono::seconds(30);

std::string seconds(std::uint32_t count) {
    return std::to_string(count) + " s";
}

void add_rung(Rungs &rungs, std::string name, bool open, std::string text, std::string change = {}) {
    auto rung = std::make_unique<local::RungT>();
    rung->name = std::move(name);
    rung->open = open;
    rung->text = std::move(text);
    rung->change = open ? std::string() : std::move(change);
    rungs.push_back(std::move(rung));
}

std::string why_no_other_job(const SiteCapabilities &site) {
    return "the fabric (switch/" + site.switch_type +
           ") gives each job an access of its own: nodes of another job would not reach the others";
}

void add_expansion(Rungs &rungs, const SiteCapabilities &site) {
    const char *name = "job expansion";
    if (site.bound_fabric()) return add_rung(rungs, name, false, why_no_other_job(site));
    if (!site.job_expansion)
        return add_rung(rungs, name, false, "SchedulerParameters has no permit_job_expansion",
                        "add permit_job_expansion to SchedulerParameters in slurm.conf");
    if (!site.database)
        return add_rung(rungs, name, false, "without slurmdbd Slurm changes a job's size only once",
                        "AccountingStorageType=accounting_storage/slurmdbd");
    if (!site.job_shrink)
        return add_rung(rungs, name, false,
                        "SchedulerParameters has disable_job_shrink: a node that fails to join would stay",
                        "take disable_job_shrink out of SchedulerParameters");
    if (site.contain)
        return add_rung(rungs, name, false,
                        "PrologFlags=Contain gives each job an extern step, and Slurm moves no node of a job "
                        "that has one",
                        "nothing, where Contain is needed: companion jobs take its place");
    add_rung(rungs, name, true, "another node can be moved into the running job");
}

void add_companion(Rungs &rungs, const SiteCapabilities &site, bool companion_jobs) {
    const char *name = "companion job";
    if (site.bound_fabric()) return add_rung(rungs, name, false, why_no_other_job(site));
    if (!companion_jobs)
        return add_rung(rungs, name, false, "the setting slurm.companion_jobs is false",
                        "companion_jobs = true in the section [slurm] of dlrover.toml");
    add_rung(rungs, name, true, "a job of one node is submitted in the user's name, and its node joins");
}

void add_fewer(Rungs &rungs, const SiteCapabilities &site) {
    const char *name = "fewer nodes";
    std::string until = "SlurmdTimeout (" + seconds(site.slurmd_timeout_s) + ")";
    if (!site.job_shrink)
        return add_rung(rungs, name, true,
                        "SchedulerParameters has disable_job_shrink: more than half of the nodes go on at "
                        "once, and a lost one stays in the job until " +
                            until + "; half of them have the job requeued",
                        "take disable_job_shrink out of SchedulerParameters");
    if (!site.database)
        return add_rung(rungs, name, true,
                        "the first loss of a job at once; without slurmdbd Slurm changes a job's size only "
                        "once, and from then on a lost node leaves its job only after " +
                            until + "; until then only a majority goes on");
    add_rung(rungs, name, true, "down to MIN of --dlrover-elastic=MIN:MAX");
}

void add_requeue(Rungs &rungs, const SiteCapabilities &site) {
    std::string what = "batch jobs; interactive ones (srun, salloc) end instead";
    if (!site.requeue) what = "batch jobs with --requeue alone (JobRequeue=0); others end instead";
    add_rung(rungs, "requeue", true, what);
}

std::string in_words(const SiteCapabilities &site) {
    std::string text = "Slurm " + site.version;
    text += site.database ? ", slurmdbd" : ", no slurmdbd";
    for (const auto &rung : ladder_of(site, true))
        if (!rung->open) text += ", no " + rung->name;
    return text;
}

}  // namespace

void add_fact(Facts &facts, std::string name, FactState state, std::string text, std::string change) {
    auto fact = std::make_unique<local::FactT>();
    fact->name = std::move(name);
    fact->state = state;
    fact->text = std::move(text);
    fact->change = std::move(change);
    facts.push_back(std::move(fact));
}

Facts site_facts(const SiteCapabilities &site) {
    Facts facts;
    if (site.database)
        add_fact(facts, "accounting", FactState::Good, "slurmdbd: a job's size may change more than once");
    else
        add_fact(
            facts, "accounting", FactState::Limited,
            "no slurmdbd: Slurm changes a job's size only once; a second lost node stays in its job until "
            "SlurmdTimeout",
            "AccountingStorageType=accounting_storage/slurmdbd");
    if (site.job_shrink)
        add_fact(facts, "job shrink", FactState::Good, "lost nodes are taken out of their job at once");
    else
        add_fact(facts, "job shrink", FactState::Limited, "off by disable_job_shrink",
                 "take disable_job_shrink out of SchedulerParameters");
    if (site.node_changes)
        add_fact(facts, "node states", FactState::Good, "the daemon may drain nodes");
    else
        add_fact(facts, "node states", FactState::Limited,
                 "the daemon runs neither as root nor as SlurmUser, and may not drain nodes");
    if (site.switch_type.empty())
        add_fact(facts, "fabric", FactState::Good, "no switch plugin: nodes of different jobs can talk");
    else if (site.bound_fabric())
        add_fact(facts, "fabric", FactState::Limited, why_no_other_job(site));
    else
        add_fact(facts, "fabric", FactState::Good, "switch/" + site.switch_type);
    add_fact(facts, "requeue", FactState::Good,
             std::string(site.requeue ? "JobRequeue=1" : "JobRequeue=0") +
                 "; by itself Slurm starts a requeued job after " + seconds(site.cred_expire_s + 1) +
                 ", the daemon asks for its start at once");
    add_fact(facts, "timeouts", FactState::Good,
             "SlurmdTimeout " + seconds(site.slurmd_timeout_s) + ", KillWait " + seconds(site.kill_wait_s));
    return facts;
}

Rungs ladder_of(const SiteCapabilities &site, bool companion_jobs) {
    Rungs rungs;
    add_rung(rungs, "spare", true, "nodes of the step beyond MAX wait, with everything they need");
    add_expansion(rungs, site);
    add_companion(rungs, site, companion_jobs);
    add_fewer(rungs, site);
    add_requeue(rungs, site);
    return rungs;
}

Site::~Site() {
    *alive_ = false;
}

void Site::start() {
    slurm_.on_return([this, alive = alive_] {
        if (*alive) learn();
    });
    learn();
}

void Site::learn() {
    load([this](const Result<SiteCapabilities> &site) {
        bool never = site.ok() || site.status().code() == Code::unsupported;
        retry_ = never ? nullptr : loop_.after(ask_again, [this] { learn(); });
    });
}

void Site::load(Answer answer) {
    slurm_.load_site([this, alive = alive_, answer = std::move(answer)](Result<SiteCapabilities> site) {
        if (!*alive) return;
        if (site.ok()) note(*site);
        answer(std::move(site));
    });
}

void Site::note(const SiteCapabilities &site) {
    if (!known_ || in_words(*known_) != in_words(site)) log::info("this site: " + in_words(site));
    known_ = site;
}

}  // namespace dlrover::daemon
