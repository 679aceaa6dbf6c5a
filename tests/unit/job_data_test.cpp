// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/job_data.h"

#include <boost/test/unit_test.hpp>
#include <optional>

#include "pmix_server/dlrover_pmix.h"
#include "pmix_server/pmix_api.h"

using namespace dlrover;
using namespace dlrover::pmix;

namespace {

World sample() {
    World world;
    world.name_space = "dlrover.7.0.g1";
    world.place = 1;
    world.nodes = {"n3", "n1", "n7"};
    world.ranks_per_node = {2, 3, 1};
    return world;
}

std::optional<JobDatum> find(const std::vector<JobDatum> &data, std::string_view key) {
    for (const auto &datum : data)
        if (datum.key == key) return datum;
    return std::nullopt;
}

template <typename T>
T get(const std::vector<JobDatum> &data, std::string_view key) {
    auto found = find(data, key);
    BOOST_REQUIRE_MESSAGE(found.has_value(), key);
    return std::get<T>(found->value);
}

}  // namespace

BOOST_AUTO_TEST_CASE(what_programs_hear_of_the_job) {
    auto data = make_job_data(sample(), "/scratch/sessions");
    BOOST_TEST(get<std::uint32_t>(data.job, PMIX_JOB_SIZE) == 6u);
    BOOST_TEST(get<std::uint32_t>(data.job, PMIX_NUM_NODES) == 3u);
    BOOST_TEST(get<std::uint32_t>(data.job, PMIX_LOCAL_SIZE) == 3u);
    BOOST_TEST(get<std::string>(data.job, PMIX_LOCAL_PEERS) == "2,3,4");
    BOOST_TEST(get<JobDatum::RankNumber>(data.job, PMIX_LOCALLDR).rank == 2u);
    BOOST_TEST(get<std::string>(data.job, PMIX_TMPDIR) == "/scratch/sessions");
    BOOST_TEST(get<std::string>(data.job, PMIX_NSDIR) == "/scratch/sessions/generation");
    BOOST_TEST(find(data.job, PMIX_TDIR_RMCLEAN).has_value());
    BOOST_TEST(get<std::string>(data.ranks[3], PMIX_PROCDIR) == "/scratch/sessions/generation/3");
    auto nodes = find(data.job, PMIX_NODE_MAP), ranks = find(data.job, PMIX_PROC_MAP);
    BOOST_TEST(std::get<std::string>(nodes->value) == "n3,n1,n7");
    BOOST_TEST(std::get<std::string>(ranks->value) == "0,1;2,3,4;5");
    BOOST_TEST((nodes->form == JobDatum::Form::node_map));
    BOOST_TEST((ranks->form == JobDatum::Form::process_map));
}

BOOST_AUTO_TEST_CASE(what_programs_hear_of_each_rank) {
    auto data = make_job_data(sample(), "/scratch/sessions");
    BOOST_REQUIRE(data.ranks.size() == 6u);
    for (std::uint32_t rank = 0; rank < 6; ++rank) {
        // PMIx takes the first for the rank that the others are about.
        BOOST_TEST(data.ranks[rank].front().key == std::string(PMIX_RANK));
        BOOST_TEST(get<JobDatum::RankNumber>(data.ranks[rank], PMIX_RANK).rank == rank);
    }
    BOOST_TEST(get<std::uint16_t>(data.ranks[4], PMIX_LOCAL_RANK) == 2);
    BOOST_TEST(get<std::uint32_t>(data.ranks[4], PMIX_NODEID) == 1u);
    BOOST_TEST(get<std::string>(data.ranks[4], PMIX_HOSTNAME) == "n1");
    BOOST_TEST(get<std::string>(data.ranks[5], PMIX_HOSTNAME) == "n7");
}

BOOST_AUTO_TEST_CASE(what_programs_may_ask_of_the_world) {
    World world = sample();
    world.generation = {Term(5), 9};
    auto text = [&](const char *key) { return std::get<std::string>(world_datum(world, key)->value); };
    BOOST_TEST(text(DLROVER_PMIX_GENERATION) == "5:9");
    BOOST_TEST(text(DLROVER_PMIX_NODES) == "n3,n1,n7");
    BOOST_TEST(text(DLROVER_PMIX_RANKS) == "2,3,1");
    BOOST_TEST(std::get<std::uint32_t>(world_datum(world, DLROVER_PMIX_WORLD_SIZE)->value) == 6u);
    BOOST_TEST(!world_datum(world, "dlrover.other").has_value());
}
