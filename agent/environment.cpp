// SPDX-License-Identifier: Apache-2.0
#include "agent/environment.h"

#include <cstring>
#include <string_view>

#include "base/hostlist.h"

namespace dlrover::agent {
namespace {

/// Messages of the module to the agent; see docs/internals.md.
constexpr const char *agent_only[] = {
    "DLROVER_AGENT_ARGV0", "DLROVER_REGISTER_ERROR", "DLROVER_REGISTER_LATE", "DLROVER_OPTIONAL",
    "DLROVER_LOCAL_TASK",  "DLROVER_TASKS_HERE",     "DLROVER_JOINS"};

void remove_agent_only(Environment &env) {
    for (const char *name : agent_only) env.erase(name);
}

/// {2,2,2,1} -> "2(x3),1"
std::string compress_counts(const std::vector<std::uint16_t> &counts) {
    std::string out;
    for (std::size_t i = 0, run = 0; i < counts.size(); i = run) {
        while (run < counts.size() && counts[run] == counts[i]) ++run;
        out += (out.empty() ? "" : ",") + std::to_string(counts[i]);
        if (run - i > 1) out += "(x" + std::to_string(run - i) + ")";
    }
    return out;
}

std::uint32_t rank_of(const proto::local::WorldPublishedT &world, LocalRank local_rank) {
    return world.first_rank + local_rank.value();
}

void set_torch(Environment &env, const LaunchSpec &spec, const proto::local::WorldPublishedT &world,
               LocalRank local_rank, const std::string &error_file) {
    std::string rank = std::to_string(rank_of(world, local_rank));
    std::string size = std::to_string(world.world_size);
    env["RANK"] = env["ROLE_RANK"] = rank;
    env["WORLD_SIZE"] = env["ROLE_WORLD_SIZE"] = size;
    env["LOCAL_RANK"] = std::to_string(local_rank.value());
    env["LOCAL_WORLD_SIZE"] = std::to_string(world.local_world_size);
    env["GROUP_RANK"] = std::to_string(world.group_rank);
    env["GROUP_WORLD_SIZE"] = std::to_string(world.node_count);
    env["ROLE_NAME"] = spec.role;
    env["MASTER_ADDR"] = world.master_addr;
    env["MASTER_PORT"] = std::to_string(world.master_port);
    env["TORCHELASTIC_RESTART_COUNT"] = std::to_string(world.restart_count);
    env["TORCHELASTIC_MAX_RESTARTS"] = std::to_string(world.max_restarts);
    env["TORCHELASTIC_RUN_ID"] = world.run_id;
    env["TORCHELASTIC_USE_AGENT_STORE"] = "False";
    env["TORCHELASTIC_ERROR_FILE"] = error_file;
    env.try_emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
    if (spec.omp_default) env.try_emplace("OMP_NUM_THREADS", "1");
}

/// Sets a SLURM_ variable and keeps what it was.
void rewrite(Environment &env, const std::string &name, const std::string &value) {
    auto old = env.find(name);
    if (old != env.end()) env["DLROVER_" + name] = old->second;
    env[name] = value;
}

std::string global_ids(const proto::local::WorldPublishedT &world) {
    std::string ids;
    for (std::uint32_t i = 0; i < world.local_world_size; ++i)
        ids += (i ? "," : "") + std::to_string(world.first_rank + i);
    return ids;
}

void set_slurm(Environment &env, const LaunchSpec &spec, const proto::local::WorldPublishedT &world,
               LocalRank local_rank) {
    std::uint32_t job = spec.job.value(), step = spec.step.value();
    std::string size = std::to_string(world.world_size);
    std::string nodes = std::to_string(world.node_count);
    std::string list = compress_hostlist(world.node_names);
    std::string counts = compress_counts(world.ranks_per_node);
    // Of another job in a node that has joined.
    auto correct = [&](const char *name, const std::string &value) {
        if (env.contains(name) && env[name] != value) rewrite(env, name, value);
    };
    for (const char *name : {"SLURM_JOB_ID", "SLURM_JOBID"}) correct(name, std::to_string(job));
    for (const char *name : {"SLURM_STEP_ID", "SLURM_STEPID"}) correct(name, std::to_string(step));
    rewrite(env, "SLURM_PROCID", std::to_string(rank_of(world, local_rank)));
    rewrite(env, "SLURM_LOCALID", std::to_string(local_rank.value()));
    rewrite(env, "SLURM_NODEID", std::to_string(world.group_rank));
    for (const char *name : {"SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"})
        rewrite(env, name, size);
    for (const char *name : {"SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_NODES"})
        rewrite(env, name, nodes);
    for (const char *name : {"SLURM_NODELIST", "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST"})
        rewrite(env, name, list);
    for (const char *name : {"SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"}) rewrite(env, name, counts);
    if (env.contains("SLURM_NTASKS_PER_NODE"))
        rewrite(env, "SLURM_NTASKS_PER_NODE", std::to_string(world.local_world_size));
    if (env.contains("SLURM_GTIDS")) rewrite(env, "SLURM_GTIDS", global_ids(world));
}

/// What is there is Slurm's, for its own PMIx (srun --mpi=pmix).
void set_pmix(Environment &env, const proto::local::WorldPublishedT &world, LocalRank local_rank) {
    if (world.variables.empty()) return;
    std::erase_if(env, [](const auto &entry) { return entry.first.starts_with("PMIX_"); });
    for (const std::string &variable : world.variables) {
        std::size_t equals = variable.find('=');
        if (equals != std::string::npos && variable.starts_with("PMIX_"))
            env[variable.substr(0, equals)] = variable.substr(equals + 1);
    }
    env["PMIX_RANK"] = std::to_string(rank_of(world, local_rank));
}

void set_ours(Environment &env, const LaunchSpec &spec, const proto::local::WorldPublishedT &world) {
    const proto::Generation none;
    const proto::Generation &g = world.generation ? *world.generation : none;
    env["DLROVER_JOB_ID"] = std::to_string(spec.job.value());
    env["DLROVER_STEP_ID"] = std::to_string(spec.step.value());
    env["DLROVER_SOCKET"] = spec.socket;
    env["DLROVER_GENERATION"] = std::to_string(g.term()) + ":" + std::to_string(g.number());
    env["DLROVER_MANAGED"] = "1";
    env["DLROVER_LINEAGE"] = spec.lineage;
}

}  // namespace

Environment environment_from(const char *const *envp) {
    Environment env;
    for (; *envp; ++envp) {
        const char *equals = std::strchr(*envp, '=');
        if (equals && equals != *envp) env.try_emplace(std::string(*envp, equals), equals + 1);
    }
    return env;
}

const std::string &value_of(const Environment &env, const std::string &name) {
    static const std::string none;
    auto at = env.find(name);
    return at == env.end() ? none : at->second;
}

std::vector<std::string> to_strings(const Environment &env) {
    std::vector<std::string> strings;
    strings.reserve(env.size());
    for (const auto &[name, value] : env) strings.push_back(name + "=" + value);
    return strings;
}

Environment worker_environment(const Environment &base, const LaunchSpec &spec,
                               const proto::local::WorldPublishedT &world, LocalRank local_rank,
                               const std::string &error_file) {
    Environment env = base;
    remove_agent_only(env);
    set_torch(env, spec, world, local_rank, error_file);
    if (env.contains("SLURM_JOB_ID")) set_slurm(env, spec, world, local_rank);
    set_pmix(env, world, local_rank);
    set_ours(env, spec, world);
    return env;
}

Environment unprotected_environment(const Environment &base) {
    static const std::pair<const char *, const char *> ranks[] = {
        {"RANK", "SLURM_PROCID"},        {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS"},
        {"LOCAL_RANK", "SLURM_LOCALID"}, {"LOCAL_WORLD_SIZE", "DLROVER_TASKS_HERE"},
        {"GROUP_RANK", "SLURM_NODEID"},  {"GROUP_WORLD_SIZE", "SLURM_STEP_NUM_NODES"}};
    Environment env = base;
    bool placed =
        env.contains("SLURM_PROCID") && env.contains("SLURM_STEP_NUM_TASKS") && !env.contains("RANK");
    for (const auto &[name, source] : ranks)
        if (placed && env.contains(source)) env[name] = env[source];
    remove_agent_only(env);
    for (const char *name : {"DLROVER_JOB_ID", "DLROVER_STEP_ID", "DLROVER_SOCKET"}) env.erase(name);
    return env;
}

}  // namespace dlrover::agent
