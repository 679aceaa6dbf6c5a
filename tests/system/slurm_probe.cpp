// SPDX-License-Identifier: Apache-2.0
// Makes the daemon's calls to Slurm from a shell, for the system tests: each prints what it was answered and
// ends with 0, or prints the failure and ends with 1.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "daemon/slurm_client.h"

using namespace dlrover;
using namespace dlrover::daemon;

namespace {

std::string joined(const std::vector<std::string> &words) {
    std::string text;
    for (const auto &word : words) text += (text.empty() ? "" : ",") + word;
    return text;
}

int report(const Status &status) {
    std::printf("%s\n", status.to_string().c_str());
    return status.ok() ? 0 : 1;
}

std::string line_of(const SlurmJob &job) {
    return "running=" + std::to_string(job.running) + " uid=" + std::to_string(job.uid) +
           " gid=" + std::to_string(job.gid) + " user=" + job.user +
           " restarts=" + std::to_string(job.restart_count) + " array=" + std::to_string(job.array_job_id) +
           "_" + std::to_string(job.array_task_id) + " batch_host=" + job.batch_host +
           " nodes=" + joined(job.nodes);
}

int show_job(SlurmCalls &calls, JobId id) {
    auto job = calls.load_job(id);
    if (!job) return report(job.status());
    std::printf("%s\n", line_of(*job).c_str());
    return 0;
}

int show_step(SlurmCalls &calls, JobId id, StepId step) {
    auto loaded = calls.load_step(id, step);
    if (!loaded) return report(loaded.status());
    std::printf("%s step_nodes=%s\n", line_of(loaded->job).c_str(), joined(loaded->nodes).c_str());
    return 0;
}

int show_addresses(SlurmCalls &calls, const std::vector<std::string> &nodes) {
    auto addresses = calls.load_addresses(nodes);
    if (!addresses) return report(addresses.status());
    for (const auto &a : *addresses) std::printf("%s=%s ", a.node.c_str(), a.address.c_str());
    std::printf("\n");
    return 0;
}

int show_site(SlurmCalls &calls) {
    auto site = calls.load_site();
    if (!site) return report(site.status());
    std::printf(
        "version=%s database=%d expansion=%d contain=%d shrink=%d node_changes=%d requeue=%d "
        "slurmd_timeout=%u kill_wait=%u cred_expire=%u switch=%s\n",
        site->version.c_str(), site->database, site->job_expansion, site->contain, site->job_shrink,
        site->node_changes, site->requeue, site->slurmd_timeout_s, site->kill_wait_s, site->cred_expire_s,
        site->switch_type.c_str());
    return 0;
}

int show_companions(SlurmCalls &calls, unsigned uid, const std::string &mark) {
    auto companions = calls.load_companions(uid, mark);
    if (!companions) return report(companions.status());
    for (const Companion &one : *companions)
        std::printf("job=%u waiting=%d expands=%d nodes=%s\n", one.job.value(), one.waiting, one.expands,
                    joined(one.nodes).c_str());
    return 0;
}

int usage() {
    std::fprintf(
        stderr,
        "usage: slurm_probe cluster | site | job ID | step ID STEP | addresses NODE... | shrink ID "
        "NODE... |\n"
        "                   requeue ID | hasten ID [NODE...] | complete ID CODE | companions UID MARK\n");
    return 2;
}

}  // namespace

int main(int argc, char **argv) {
    std::vector<std::string> args(argv + 1, argv + argc);
    if (args.empty()) return usage();
    auto calls = make_libslurm_calls("");
    const std::string &what = args[0];
    std::vector<std::string> tail(args.begin() + 1, args.end());
    if (what == "cluster") return std::printf("%s\n", calls->cluster_name().c_str()) > 1 ? 0 : 1;
    if (what == "site") return show_site(*calls);
    if (what == "addresses") return show_addresses(*calls, tail);
    if (tail.empty()) return usage();
    JobId id(static_cast<std::uint32_t>(std::atoi(tail[0].c_str())));
    std::vector<std::string> nodes(tail.begin() + 1, tail.end());
    if (what == "job") return show_job(*calls, id);
    if (what == "requeue") return report(calls->requeue_job(id));
    if (what == "shrink") return report(calls->shrink_job(id, nodes));
    if (what == "hasten") return report(calls->hasten_job(id, {.excluded = nodes}).status());
    if (nodes.empty()) return usage();
    if (what == "companions") return show_companions(*calls, id.value(), nodes[0]);
    int number = std::atoi(nodes[0].c_str());
    if (what == "step") return show_step(*calls, id, StepId(static_cast<std::uint32_t>(number)));
    if (what == "complete")
        return report(calls->complete_headless(id, {.exit_code = number, .anyhow = true}).take_status());
    return usage();
}
