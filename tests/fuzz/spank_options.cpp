// SPDX-License-Identifier: Apache-2.0
// What users write behind --dlrover-*, and the line that carries it to the nodes. First byte: which parser.
#include "fuzz.h"
#include "spank_plugin/options.h"
#include "spank_plugin/tasks_per_node.h"

namespace dlrover::fuzz {
namespace {

using namespace spank;
constexpr std::uint8_t request_choice = option_count, tasks_choice = option_count + 1;

bool run_option(OptionId id, std::string_view text) {
    Options options, before = options;
    if (!parse_option(id, text, options).ok()) {
        require(options == before, "a refused option changes nothing");
        return false;
    }
    if (!check_options(options).ok()) return true;
    auto size = fit_options(options, 8);
    if (size)
        require(size->min_nodes >= 1 && size->min_nodes <= size->max_nodes, "a group's size makes sense");
    if (options.elastic != Elastic::on) return true;  // nothing travels
    auto carried = decode_request(encode_request({options, "/home/user"}));
    require(carried.ok() && carried->options == options, "options survive the way to the nodes");
    return true;
}

bool run_request(std::string_view text) {
    auto request = decode_request(text);
    if (!request) return false;
    auto again = decode_request(encode_request(*request));
    require(again.ok() && *again == *request, "a request survives the way");
    return true;
}

bool run_tasks(std::string_view text) {
    auto tasks = parse_tasks_per_node(text, 4);
    if (tasks) require(tasks->size() == 4, "each node has its tasks");
    return tasks.ok();
}

Bytes seed(std::uint8_t choice, std::string_view text) {
    Bytes bytes{choice};
    bytes.insert(bytes.end(), text.begin(), text.end());
    return bytes;
}

}  // namespace

bool run(std::span<const std::uint8_t> input) {
    if (input.empty()) return false;
    auto text = text_of(input.subspan(1));
    if (input[0] < option_count) return run_option(static_cast<OptionId>(input[0]), text);
    if (input[0] == request_choice) return run_request(text);
    return input[0] == tasks_choice && run_tasks(text);
}

std::vector<Bytes> seeds() {
    auto of = [](OptionId id, std::string_view text) { return seed(static_cast<std::uint8_t>(id), text); };
    Options options;
    options.elastic = Elastic::on;
    options.min_nodes = 2;
    options.max_nodes = 4;
    options.name = "run-1";
    options.ckpt_dir = "/scratch/ckpt dir";
    return {of(OptionId::elastic, "2:4"),
            of(OptionId::elastic, "off"),
            of(OptionId::elastic, "(null)"),
            of(OptionId::spares, "1"),
            of(OptionId::max_restarts, "12"),
            of(OptionId::name, "run-1"),
            of(OptionId::ckpt_dir, "/a b"),
            of(OptionId::ckpt_every, "10min"),
            of(OptionId::ckpt_keep, "3:1000"),
            of(OptionId::redundancy, "single"),
            of(OptionId::companion, "no"),
            of(OptionId::join, "57.0.1"),
            seed(request_choice, encode_request({options, "/home/user"})),
            seed(tasks_choice, "2(x3),1")};
}

}  // namespace dlrover::fuzz
