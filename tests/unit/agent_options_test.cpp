// SPDX-License-Identifier: Apache-2.0
#include <boost/test/unit_test.hpp>

#include "agent/run_options.h"

using namespace dlrover;
using namespace dlrover::agent;

namespace {

using Words = std::vector<std::string>;

Result<RunOptions> parse(const Words &args, const Environment &env = {}, MachineCounts machine = {8, 2}) {
    return parse_run_options(args, env, machine);
}

void refused(const Words &args, const char *part, const Environment &env = {},
             MachineCounts machine = {8, 2}) {
    auto r = parse(args, env, machine);
    BOOST_TEST_CONTEXT(part) {
        BOOST_REQUIRE(!r.ok());
        BOOST_TEST(r.status().message().find(part) != std::string::npos, r.status().message());
    }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(agent_options)

BOOST_AUTO_TEST_CASE(program_after_options) {
    auto r = parse({"--nproc_per_node", "4", "--nnodes=2:4", "train.py", "--lr", "-m", "0.1"});
    BOOST_REQUIRE(r.ok());
    BOOST_TEST(r->workers == 4u);
    BOOST_TEST(*r->min_nodes == 2u);
    BOOST_TEST(*r->max_nodes == 4u);
    BOOST_TEST(!r->standalone);
    BOOST_TEST(r->argv == (Words{"python3", "-u", "train.py", "--lr", "-m", "0.1"}),
               boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(ways_to_start) {
    BOOST_TEST(parse({"-m", "pkg.train", "x"})->argv == (Words{"python3", "-u", "-m", "pkg.train", "x"}),
               boost::test_tools::per_element());
    BOOST_TEST(parse({"--no-python", "./solver", "-n"})->argv == (Words{"./solver", "-n"}),
               boost::test_tools::per_element());
    BOOST_TEST(parse({"--", "-odd.py"})->argv == (Words{"python3", "-u", "-odd.py"}),
               boost::test_tools::per_element());
    BOOST_TEST(
        parse({"x.py"}, {{"PYTHON_EXEC", "/opt/python"}})->argv == (Words{"/opt/python", "-u", "x.py"}),
        boost::test_tools::per_element());
    refused({"--no_python", "-m", "x"}, "exclude each other");
    refused({}, "no program");
}

BOOST_AUTO_TEST_CASE(workers_by_word) {
    BOOST_TEST(parse({"--nproc-per-node=auto", "x"})->workers == 2u);
    BOOST_TEST(parse({"--nproc-per-node=auto", "x"}, {}, {8, 0})->workers == 8u);
    BOOST_TEST(parse({"--nproc-per-node=cpu", "x"})->workers == 8u);
    BOOST_TEST(parse({"--nproc-per-node=gpu", "x"})->workers == 2u);
    BOOST_TEST(parse({"x"})->workers == 1u);
    refused({"--nproc-per-node=gpu", "x"}, "no CUDA device", {}, {8, 0});
    refused({"--nproc-per-node=0", "x"}, "--nproc-per-node");
    refused({"--nproc-per-node=many", "x"}, "--nproc-per-node");
}

BOOST_AUTO_TEST_CASE(visible_gpus) {
    BOOST_TEST(MachineCounts::read({{"CUDA_VISIBLE_DEVICES", "0,3,5"}}).gpus == 3u);
    BOOST_TEST(MachineCounts::read({{"CUDA_VISIBLE_DEVICES", ""}}).gpus == 0u);
    BOOST_TEST(MachineCounts::read({{"CUDA_VISIBLE_DEVICES", "NoDevFiles"}}).gpus == 0u);
    BOOST_TEST(MachineCounts::read({}).cpus >= 1u);
}

BOOST_AUTO_TEST_CASE(values_that_are_refused) {
    refused({"--nnodes=3:2", "x"}, "MIN:MAX");
    refused({"--nnodes=0", "x"}, "MIN:MAX");
    refused({"--nnodes=2:", "x"}, "MIN:MAX");
    refused({"--max-restarts=-1", "x"}, "--max-restarts");
    refused({"--unknown", "x"}, "--unknown");
    refused({"--nnode=1", "x"}, "--nnode=1");  // no abbreviations
    refused({"-q", "x"}, "-q");
    refused({"--standalone=yes", "x"}, "takes no value");
    refused({"--nnodes"}, "needs a value");
    refused({"-r", "4", "x"}, "--redirects");
    refused({"--tee", "0:9", "x"}, "--tee");
}

BOOST_AUTO_TEST_CASE(accepted_as_torchrun_has_them) {
    auto r = parse({"--rdzv-backend=c10d", "--rdzv_endpoint", "h:1", "--rdzv-conf", "a=b", "--rdzv_id=7",
                    "--master-addr=h", "--master_port", "1", "--node-rank=0", "--monitor-interval", "0.1",
                    "--start-method=spawn", "--local-addr", "h", "--role=trainer", "--network-check",
                    "--auto_tunning", "x"});
    BOOST_REQUIRE(r.ok());
    BOOST_TEST(r->run_id == "7");
    BOOST_TEST(r->role == "trainer");
    BOOST_TEST(r->notes.size() == 2u);  // only what the user might miss is said
}

BOOST_AUTO_TEST_CASE(from_the_environment) {
    Environment env{
        {"PET_NNODES", "1:2"}, {"PET_NPROC_PER_NODE", "3"}, {"PET_STANDALONE", "1"}, {"PET_MODULE", "0"}};
    auto r = parse({"--nproc-per-node=5", "x"}, env);
    BOOST_REQUIRE(r.ok());
    BOOST_TEST(*r->max_nodes == 2u);
    BOOST_TEST(r->workers == 5u);
    BOOST_TEST(r->standalone);
    BOOST_TEST(r->argv.size() == 3u);
    refused({"x"}, "PET_STANDALONE", {{"PET_STANDALONE", "maybe"}});
}

BOOST_AUTO_TEST_CASE(masks) {
    auto r = parse({"-r", "0:1,2:3", "-t3", "--log-dir", "logs", "x"});
    BOOST_REQUIRE(r.ok());
    BOOST_TEST(r->logs.redirects.of(LocalRank(0)) == 1u);
    BOOST_TEST(r->logs.redirects.of(LocalRank(1)) == 0u);
    BOOST_TEST(r->logs.redirects.of(LocalRank(2)) == 3u);
    BOOST_TEST(r->logs.tee.of(LocalRank(9)) == 3u);
    BOOST_TEST(r->logs.dir == "logs");
    BOOST_TEST(!StdMask().any());
}

BOOST_AUTO_TEST_CASE(help_needs_no_program) {
    BOOST_TEST(parse({"--help"})->help);
    BOOST_TEST(parse({"-h"})->help);
    BOOST_TEST(parse({"--version"})->version);
}

BOOST_AUTO_TEST_SUITE_END()
