// SPDX-License-Identifier: Apache-2.0
// Every parser of a user's text in the module: the first byte chooses, the rest is the text.
#include <cstdlib>

#include "base/hostlist.h"
#include "spank_plugin/options.h"
#include "spank_plugin/step_facts.h"
#include "spank_plugin/submission.h"
#include "spank_plugin/tasks_per_node.h"

using namespace dlrover;
using namespace dlrover::spank;

namespace {

void require(bool holds) {
    if (!holds) std::abort();
}

void try_request(std::string_view text) {
    auto request = decode_request(text);
    if (!request) return;
    auto again = decode_request(encode_request(*request));
    require(again.ok() && *again == *request);
}

void try_hostlist(std::string_view text) {
    auto names = expand_hostlist(text, 1000);
    if (!names) return;
    require(names->size() <= 1000);
    auto again = expand_hostlist(compress_hostlist(*names), 1000);
    require(again.ok() && *again == *names);
}

void try_option(OptionId id, std::string_view text) {
    Options options;
    if (!parse_option(id, text, options).ok()) {
        require(options == Options{});
        return;
    }
    for (std::uint32_t nodes : {0U, 1U, 4U, 65536U, UINT32_MAX})
        if (auto size = fit_options(options, nodes))
            require(size->min_nodes >= 1 && size->min_nodes <= size->max_nodes && size->max_nodes <= nodes);
}

void try_registration(std::string_view text) {
    StepFacts facts;
    facts.nodes = 3;
    facts.tasks_here = 1;
    facts.total_tasks = 3;
    std::size_t cut = text.find('|');
    facts.step_nodes = text.substr(0, cut);
    facts.tasks_per_node = cut == std::string_view::npos ? "1(x3)" : text.substr(cut + 1);
    facts.job_nodes = facts.step_nodes;
    auto step = make_registration(facts, {}, {1, 3});
    if (step) require(step->node_names.size() == 3 && step->tasks_per_node.size() == 3);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char *data, std::size_t size) {
    if (size == 0) return 0;
    std::string_view text(reinterpret_cast<const char *>(data) + 1, size - 1);
    std::size_t choice = data[0] % (option_count + 5);
    if (choice < option_count) try_option(static_cast<OptionId>(choice), text);
    if (choice == option_count) try_request(text);
    if (choice == option_count + 1) try_hostlist(text);
    if (choice == option_count + 2 && parse_tasks_per_node(text, 100).ok()) require(!text.empty());
    if (choice == option_count + 3) fixed_node_count(text, true);
    if (choice == option_count + 4) try_registration(text);
    return 0;
}
