// SPDX-License-Identifier: Apache-2.0
#include "agent/environment.h"

#include <boost/test/unit_test.hpp>

using namespace dlrover;
using namespace dlrover::agent;

namespace {

proto::local::WorldPublishedT two_of_three_nodes() {
    proto::local::WorldPublishedT world;
    world.generation = std::make_unique<proto::Generation>((std::uint64_t{2} << 32) + 1, 7);
    world.world_size = 6;
    world.node_count = 2;
    world.group_rank = 1;
    world.local_world_size = 3;
    world.first_rank = 3;
    world.ranks_per_node = {3, 3};
    world.node_names = {"n3", "n1"};
    world.master_addr = "10.0.0.3";
    world.master_port = 29500;
    world.restart_count = 2;
    world.max_restarts = 5;
    world.run_id = "run";
    return world;
}

LaunchSpec spec() {
    LaunchSpec s;
    s.job = JobId(42);
    s.step = StepId(3);
    s.socket = "/run/s";
    s.lineage = "c/1/name";
    return s;
}

void check(const Environment &env, std::initializer_list<std::pair<const char *, const char *>> wanted) {
    for (auto [name, value] : wanted)
        BOOST_TEST(value_of(env, name) == value, name << "=" << value_of(env, name));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(agent_environment)

BOOST_AUTO_TEST_CASE(pmix_is_the_worlds_or_slurms) {
    auto world = two_of_three_nodes();
    Environment slurms{{"PMIX_RANK", "9"}, {"PMIX_SERVER_URI2", "theirs"}};
    check(worker_environment(slurms, spec(), world, LocalRank(2), ""), {{"PMIX_RANK", "9"}});
    world.variables = {"PMIX_NAMESPACE=dlrover.42.3.0.g1-7", "PMIX_SERVER_URI41=uri=1", "PATH=/evil",
                       "PMIX_X"};
    auto env = worker_environment(slurms, spec(), world, LocalRank(2), "");
    check(env, {{"PMIX_RANK", "5"},
                {"PMIX_NAMESPACE", "dlrover.42.3.0.g1-7"},
                {"PMIX_SERVER_URI41", "uri=1"},
                {"PMIX_SERVER_URI2", ""},
                {"PATH", ""}});
    BOOST_TEST(!env.contains("PMIX_X"));
}

BOOST_AUTO_TEST_CASE(all_of_torchruns_variables) {
    auto env = worker_environment({}, spec(), two_of_three_nodes(), LocalRank(2), "/tmp/e.json");
    check(env, {{"RANK", "5"},
                {"LOCAL_RANK", "2"},
                {"GROUP_RANK", "1"},
                {"ROLE_RANK", "5"},
                {"ROLE_WORLD_SIZE", "6"},
                {"ROLE_NAME", "default"},
                {"WORLD_SIZE", "6"},
                {"LOCAL_WORLD_SIZE", "3"},
                {"GROUP_WORLD_SIZE", "2"},
                {"MASTER_ADDR", "10.0.0.3"},
                {"MASTER_PORT", "29500"},
                {"TORCHELASTIC_RESTART_COUNT", "2"},
                {"TORCHELASTIC_MAX_RESTARTS", "5"},
                {"TORCHELASTIC_RUN_ID", "run"},
                {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                {"TORCHELASTIC_ERROR_FILE", "/tmp/e.json"},
                {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
                {"DLROVER_JOB_ID", "42"},
                {"DLROVER_STEP_ID", "3"},
                {"DLROVER_SOCKET", "/run/s"},
                {"DLROVER_GENERATION", "8589934593:7"},
                {"DLROVER_LINEAGE", "c/1/name"},
                {"DLROVER_MANAGED", "1"}});
    BOOST_TEST(!env.contains("OMP_NUM_THREADS"));
    BOOST_TEST(!env.contains("SLURM_PROCID"));  // no job: nothing to rewrite
}

BOOST_AUTO_TEST_CASE(slurms_variables_are_rewritten_and_kept) {
    Environment base{{"SLURM_JOB_ID", "42"},        {"SLURM_PROCID", "8"},          {"SLURM_NTASKS", "9"},
                     {"SLURM_NODELIST", "n[1-3]"},  {"SLURM_NTASKS_PER_NODE", "1"}, {"SLURM_GTIDS", "6,7,8"},
                     {"SLURM_STEP_NUM_TASKS", "9"}, {"SLURM_CPUS_PER_TASK", "4"}};
    auto env = worker_environment(base, spec(), two_of_three_nodes(), LocalRank(0), "");
    check(env, {{"SLURM_PROCID", "3"},
                {"SLURM_LOCALID", "0"},
                {"SLURM_NODEID", "1"},
                {"SLURM_NTASKS", "6"},
                {"SLURM_NPROCS", "6"},
                {"SLURM_STEP_NUM_TASKS", "6"},
                {"SLURM_NNODES", "2"},
                {"SLURM_JOB_NUM_NODES", "2"},
                {"SLURM_STEP_NUM_NODES", "2"},
                {"SLURM_TASKS_PER_NODE", "3(x2)"},
                {"SLURM_STEP_TASKS_PER_NODE", "3(x2)"},
                {"SLURM_NTASKS_PER_NODE", "3"},
                {"SLURM_GTIDS", "3,4,5"},
                {"SLURM_CPUS_PER_TASK", "4"},
                {"SLURM_JOB_ID", "42"},
                {"DLROVER_SLURM_PROCID", "8"},
                {"DLROVER_SLURM_NTASKS", "9"},
                {"DLROVER_SLURM_NODELIST", "n[1-3]"},
                {"DLROVER_SLURM_GTIDS", "6,7,8"}});
    // The order is that of the ranks: the first name is the node of rank 0.
    for (const char *name : {"SLURM_NODELIST", "SLURM_JOB_NODELIST", "SLURM_STEP_NODELIST"})
        BOOST_TEST((value_of(env, name) == "n[3,1]" || value_of(env, name) == "n3,n1"), value_of(env, name));
    BOOST_TEST(!env.contains("DLROVER_SLURM_NPROCS"));  // it was not set
}

BOOST_AUTO_TEST_CASE(what_is_for_the_agent_alone_is_removed) {
    Environment base{{"DLROVER_AGENT_ARGV0", "x"}, {"DLROVER_REGISTER_ERROR", ""}, {"DLROVER_OPTIONAL", "1"},
                     {"DLROVER_LOCAL_TASK", "0"},  {"DLROVER_TASKS_HERE", "1"},    {"HOME", "/h"}};
    auto env = worker_environment(base, spec(), two_of_three_nodes(), LocalRank(0), "");
    for (const auto &[name, value] : base) BOOST_TEST(env.contains(name) == (name == "HOME"), name);
    BOOST_TEST(unprotected_environment(base).size() == 1u);
}

BOOST_AUTO_TEST_CASE(an_unprotected_task_knows_its_rank) {
    Environment base{{"SLURM_PROCID", "5"},  {"SLURM_STEP_NUM_TASKS", "8"},
                     {"SLURM_LOCALID", "1"}, {"DLROVER_TASKS_HERE", "4"},
                     {"SLURM_NODEID", "1"},  {"SLURM_STEP_NUM_NODES", "2"}};
    auto env = unprotected_environment(base);
    check(env, {{"RANK", "5"},
                {"WORLD_SIZE", "8"},
                {"LOCAL_RANK", "1"},
                {"LOCAL_WORLD_SIZE", "4"},
                {"GROUP_RANK", "1"},
                {"GROUP_WORLD_SIZE", "2"}});
    BOOST_TEST(!env.contains("DLROVER_TASKS_HERE"));
    base["RANK"] = "3";  // the program's launcher has said so
    env = unprotected_environment(base);
    BOOST_TEST(env["RANK"] == "3");
    BOOST_TEST(!env.contains("WORLD_SIZE"));
}

BOOST_AUTO_TEST_CASE(the_users_choices_stay) {
    Environment base{{"TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"}, {"OMP_NUM_THREADS", "8"}};
    LaunchSpec several = spec();
    several.omp_default = true;
    auto env = worker_environment(base, several, two_of_three_nodes(), LocalRank(0), "");
    check(env, {{"TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"}, {"OMP_NUM_THREADS", "8"}});
    check(worker_environment({}, several, two_of_three_nodes(), LocalRank(0), ""),
          {{"OMP_NUM_THREADS", "1"}});
}

BOOST_AUTO_TEST_CASE(odd_entries) {
    const char *const given[] = {"A=1", "B=x=y", "=hidden", "NOVALUE", "A=2", "E=", nullptr};
    Environment env = environment_from(given);
    check(env, {{"A", "1"}, {"B", "x=y"}, {"E", ""}});
    BOOST_TEST(env.size() == 3u);
    BOOST_TEST(to_strings(env) == (std::vector<std::string>{"A=1", "B=x=y", "E="}),
               boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()
