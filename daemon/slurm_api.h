// SPDX-License-Identifier: Apache-2.0
// libslurm's answers as owned handles, its errors as Status, and the calls that several of daemon/slurm_*.cpp
// make. For those files alone. All calls block.
#pragma once

#include "config.h"

#include <slurm/slurm.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/ids.h"
#include "base/status.h"

namespace dlrover::daemon {

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
struct FreeLayout {
    void operator()(slurm_step_layout_t *p) const { ::slurm_job_step_layout_free(p); }
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

std::string text_of(const char *text);
std::string name_of(JobId job);
std::vector<std::string> expand(const char *ranges);
/// Of an AdminComment: slurmdbd's column may end at 64 KiB.
inline constexpr std::size_t longest_comment = 32 << 10;
std::string join(const auto &names) {
    std::string text;
    for (const std::string &name : names) text += (text.empty() ? "" : ",") + name;
    return text;
}

/// Of the call that has just failed.
Status failure(const std::string &what);

bool is_running(const slurm_job_info_t &job);
bool is_waiting(const slurm_job_info_t &job);
std::span<const slurm_job_info_t> records(const Jobs &jobs);
/// The record of this very job among those of its array; or nullptr.
const slurm_job_info_t *find_job(const Jobs &jobs, JobId id);
Status fetch_job(JobId id, Jobs &jobs);
/// Of root: everybody's. Those of others may be among any user's.
Result<Jobs> load_jobs_of(std::uint32_t uid);
Status send_update(JobId id, job_desc_msg_t &update, const std::string &what);
/// Of one step, of all with NO_VAL; steps of other jobs may be among them.
Result<Steps> load_steps(JobId job, std::uint32_t step);
/// One word more in its comment for administrators.
Status add_to_comment(JobId id, std::string comment, const std::string &word);
/// At once. A job that is over counts as cancelled.
Status kill_job(JobId id);

}  // namespace dlrover::daemon
