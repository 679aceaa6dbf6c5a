// SPDX-License-Identifier: Apache-2.0
#include "daemon/slurm_nodes.h"

#include <slurm/slurm_errno.h>

#include <algorithm>

#include "daemon/slurm_api.h"

namespace dlrover::daemon {
namespace {

/// From here on one question for all nodes is cheaper than one each.
constexpr std::size_t few_nodes = 16;
constexpr auto topology_valid = std::chrono::minutes(10);

Result<Nodes> load_all() {
    node_info_msg_t *raw = nullptr;
    int rc = ::slurm_load_node(0, &raw, SHOW_ALL);
    Nodes nodes(raw);
    if (rc != SLURM_SUCCESS) return failure("nodes");
    return nodes;
}

/// Never an empty answer.
Result<Nodes> load_one(const std::string &name) {
    node_info_msg_t *raw = nullptr;
    std::string copy = name;
    int rc = ::slurm_load_node_single(&raw, copy.data(), SHOW_ALL);
    Nodes nodes(raw);
    if (rc != SLURM_SUCCESS) return failure("node " + name);
    if (!nodes || nodes->record_count == 0)
        return Status(Code::not_found, "node " + name + " is not known to Slurm");
    return nodes;
}

void add_matching(const Nodes &nodes, const std::vector<std::string> &sorted_names,
                  std::vector<NodeAddress> &addresses) {
    for (std::uint32_t i = 0; nodes && i < nodes->record_count; ++i) {
        const node_info_t &node = nodes->node_array[i];
        if (!node.name || !node.node_addr) continue;
        if (std::binary_search(sorted_names.begin(), sorted_names.end(), std::string(node.name)))
            addresses.push_back({node.name, node.node_addr, node.mem_spec_limit << 20});
    }
}

}  // namespace

void Topology::name_switches(std::vector<NodeAddress> &nodes) {
    load();
    for (NodeAddress &node : nodes)
        if (auto found = leaves_.find(node.node); found != leaves_.end()) node.leaf_switch = found->second;
}

void Topology::load() {
#ifdef HAVE_SLURM_TOPOLOGY_ARRAY
    if (loaded_ && std::chrono::steady_clock::now() - *loaded_ < topology_valid) return;
    topo_info_response_msg_t *raw = nullptr;
    if (::slurm_load_topo(&raw) != SLURM_SUCCESS) return;  // what was known still is
    std::unique_ptr<topo_info_response_msg_t, FreeTopology> topology(raw);
    loaded_ = std::chrono::steady_clock::now();
    leaves_.clear();
    for (std::uint32_t i = 0; topology && i < topology->record_count; ++i) {
        const topo_info_t &entry = topology->topo_array[i];
        if (entry.level != 0 || !entry.name) continue;
        for (std::string &node : expand(entry.nodes)) leaves_.emplace(std::move(node), entry.name);
    }
#endif
}

Result<std::vector<NodeAddress>> find_addresses(const std::vector<std::string> &names) {
    std::vector<NodeAddress> addresses;
    if (names.size() > few_nodes) {
        auto all = load_all();
        if (!all) return all.take_status();
        auto sorted = names;
        std::sort(sorted.begin(), sorted.end());
        add_matching(*all, sorted, addresses);
        return addresses;
    }
    for (const auto &name : names) {
        auto one = load_one(name);
        if (!one && one.status().code() == Code::not_found) continue;
        if (!one) return one.take_status();
        add_matching(*one, {name}, addresses);
    }
    return addresses;
}

Status drain(const std::string &node, const std::string &reason) {
    auto there = load_one(node);
    if (!there) return there.take_status();
    if (((*there)->node_array[0].node_state & NODE_STATE_DRAIN) != 0) return {};
    std::string name = node, why = reason;
    update_node_msg_t update;
    ::slurm_init_update_node_msg(&update);
    update.node_names = name.data();
    update.node_state = NODE_STATE_DRAIN;
    update.reason = why.data();
    if (::slurm_update_node(&update) != SLURM_SUCCESS) return failure("drain " + node);
    return {};
}

bool is_silent(const std::string &node) {
    auto there = load_one(node);
    if (!there) return false;
    auto state = (*there)->node_array[0].node_state;
    return (state & NODE_STATE_NO_RESPOND) != 0 || (state & NODE_STATE_BASE) == NODE_STATE_DOWN;
}

std::optional<std::vector<std::string>> pick_idle(const std::vector<NodeState> &nodes, bool anyhow) {
    constexpr auto unwanted = NODE_STATE_DRAIN | NODE_STATE_FAIL;
    std::vector<std::string> idle;
    for (const NodeState &one : nodes) {
        auto base = one.state & NODE_STATE_BASE;
        if (base == NODE_STATE_DOWN || (one.state & unwanted) != 0) continue;
        bool is_early = (one.state & (NODE_STATE_COMPLETING | NODE_STATE_NO_RESPOND)) != 0;
        if (is_early && !anyhow) return std::nullopt;
        if (!is_early && (base == NODE_STATE_IDLE || base == NODE_STATE_MIXED)) idle.push_back(one.node);
    }
    return idle;
}

Result<std::optional<std::vector<std::string>>> find_idle(const std::vector<std::string> &names,
                                                          bool anyhow) {
    if (names.empty()) return std::optional(names);
    auto all = load_all();
    if (!all) return all.take_status();
    std::vector<NodeState> states;
    for (std::uint32_t i = 0; *all && i < (*all)->record_count; ++i) {
        const node_info_t &node = (*all)->node_array[i];
        std::string name = text_of(node.name);
        if (std::find(names.begin(), names.end(), name) != names.end())
            states.push_back({std::move(name), node.node_state});
    }
    return pick_idle(states, anyhow);
}

}  // namespace dlrover::daemon
