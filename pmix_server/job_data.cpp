// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/job_data.h"

#include "pmix_server/dlrover_pmix.h"
#include "pmix_server/pmix_api.h"

namespace dlrover::pmix {
namespace {

using Form = JobDatum::Form;

std::string join(const std::vector<std::string> &words, char between) {
    std::string text;
    for (const auto &word : words) (text.empty() ? text : text += between) += word;
    return text;
}

/// "0,1,2"
std::string ranks_text(std::uint32_t first, std::uint32_t count) {
    std::vector<std::string> words;
    for (std::uint32_t i = 0; i < count; ++i) words.push_back(std::to_string(first + i));
    return join(words, ',');
}

std::vector<JobDatum> rank_data(const World &world, std::uint32_t place, std::uint32_t local) {
    std::uint32_t rank = world.first_rank(place) + local;
    auto narrow = static_cast<std::uint16_t>(local);
    return {{PMIX_RANK, JobDatum::RankNumber{rank}},
            {PMIX_GLOBAL_RANK, JobDatum::RankNumber{rank}},
            {PMIX_APP_RANK, JobDatum::RankNumber{rank}},
            {PMIX_APPNUM, std::uint32_t{0}},
            {PMIX_LOCAL_RANK, narrow},
            {PMIX_NODE_RANK, narrow},
            {PMIX_NODEID, place},
            {PMIX_HOSTNAME, world.nodes[place]}};
}

}  // namespace

JobData make_job_data(const World &world, const std::string &sessions) {
    JobData data;
    const std::string own = sessions + "/generation";
    std::vector<std::string> lists;
    for (std::uint32_t place = 0; place < world.nodes.size(); ++place) {
        lists.push_back(ranks_text(world.first_rank(place), world.ranks_per_node[place]));
        for (std::uint32_t local = 0; local < world.ranks_per_node[place]; ++local)
            data.ranks.push_back(rank_data(world, place, local));
    }
    for (std::size_t rank = 0; rank < data.ranks.size(); ++rank)
        data.ranks[rank].push_back({PMIX_PROCDIR, own + "/" + std::to_string(rank)});
    std::uint32_t size = world.size(), first = world.first_rank(world.place), here = world.ranks_here();
    data.job = {{PMIX_JOBID, world.name_space},
                {PMIX_JOB_SIZE, size},
                {PMIX_UNIV_SIZE, size},
                {PMIX_MAX_PROCS, size},
                {PMIX_JOB_NUM_APPS, std::uint32_t{1}},
                {PMIX_APP_SIZE, size},
                {PMIX_NUM_NODES, static_cast<std::uint32_t>(world.nodes.size())},
                {PMIX_NODE_MAP, join(world.nodes, ','), Form::node_map},
                {PMIX_PROC_MAP, join(lists, ';'), Form::process_map},
                {PMIX_NODEID, world.place},
                {PMIX_LOCAL_SIZE, here},
                {PMIX_NODE_SIZE, here},
                {PMIX_LOCAL_PEERS, ranks_text(first, here)},
                {PMIX_LOCALLDR, JobDatum::RankNumber{first}},
                {PMIX_TMPDIR, sessions},
                {PMIX_NSDIR, own},
                {PMIX_TDIR_RMCLEAN, JobDatum::Yes{}}};
    return data;
}

std::string generation_text(const World &world) {
    return std::to_string(world.generation.term.value()) + ":" + std::to_string(world.generation.number);
}

std::optional<JobDatum> world_datum(const World &world, std::string_view key) {
    if (key == DLROVER_PMIX_GENERATION) return JobDatum{DLROVER_PMIX_GENERATION, generation_text(world)};
    if (key == DLROVER_PMIX_NODES) return JobDatum{DLROVER_PMIX_NODES, join(world.nodes, ',')};
    if (key == DLROVER_PMIX_WORLD_SIZE) return JobDatum{DLROVER_PMIX_WORLD_SIZE, world.size()};
    if (key != DLROVER_PMIX_RANKS) return std::nullopt;
    std::vector<std::string> counts;
    for (std::uint16_t count : world.ranks_per_node) counts.push_back(std::to_string(count));
    return JobDatum{DLROVER_PMIX_RANKS, join(counts, ',')};
}

}  // namespace dlrover::pmix
