// SPDX-License-Identifier: Apache-2.0
// Where the group's nodes are. Slurm says it; what it has said is on record, so that a restarted daemon links
// to them at once, and lets them in, while Slurm does not answer.
#include <set>

#include "common/log.h"
#include "daemon/group.h"
#include "daemon/keeper_link.h"

namespace dlrover::daemon {
namespace {

/// For the record's name and the packet around it.
constexpr std::size_t packet_slack = 1024;

}  // namespace

void Group::save(RecordKeeper::Done done) {
    records::GroupRecordT copy = record_;
    for (const auto &node : registration().node_names) {
        auto known = addresses_.find(node);
        copy.addresses.push_back(known == addresses_.end() ? "" : known->second);
    }
    auto bytes = encode_record(copy);
    // The group can do without them.
    if (bytes.size() + packet_slack > max_keeper_packet_bytes) {
        copy.addresses.clear();
        bytes = encode_record(std::move(copy));
    }
    services_.keeper.put(record_name("group", key_), std::move(bytes), -1, std::move(done));
}

void Group::use_recorded_addresses() {
    auto recorded = std::exchange(record_.addresses, {});
    if (record_.ended) return;
    const auto &names = registration().node_names;
    for (std::size_t i = 0; i < std::min(names.size(), recorded.size()); ++i) {
        if (recorded[i].empty()) continue;
        unconfirmed_.insert(names[i]);
        set_address(names[i], recorded[i]);
    }
}

void Group::find_addresses() {
    addresses_timer_.reset();
    const auto &names = registration().node_names;
    if (record_.ended || names.size() < 2) return;
    std::set<std::string> unknown;
    for (const auto &name : names)
        if (!addresses_.contains(name) || unconfirmed_.contains(name)) unknown.insert(name);
    if (unknown.empty()) return;
    std::vector<std::string> asked(unknown.begin(), unknown.end());
    services_.slurm.load_addresses(
        asked, [this, alive = alive_, asked](Result<std::vector<NodeAddress>> found) {
            if (!*alive) return;
            if (found.ok()) return use_addresses(asked, *found);
            if (!addresses_backoff_.failing())
                log::warning({job(), step()}, "the nodes' addresses: " + found.status().message());
            addresses_timer_ = services_.loop.after(addresses_backoff_.next(), [this] { find_addresses(); });
        });
}

void Group::on_slurm_return() {
    if (addresses_timer_) find_addresses();
}

void Group::use_addresses(const std::vector<std::string> &asked, const std::vector<NodeAddress> &found) {
    addresses_backoff_.reset();
    std::set<std::string> gone;
    for (const auto &name : asked)
        if (unconfirmed_.erase(name) > 0) gone.insert(name);
    bool news = false;
    for (const NodeAddress &node : found) {
        gone.erase(node.node);
        if (!node.leaf_switch.empty()) switches_[node.node] = node.leaf_switch;
        news = set_address(node.node, node.address) || news;
    }
    for (const auto &name : gone) forget_address(name);
    if (news || !gone.empty()) save();
    tell_switches();
}

/// Whether that is new.
bool Group::set_address(const std::string &node, const std::string &address) {
    auto known = addresses_.find(node);
    if (known != addresses_.end() && known->second == address) return false;
    forget_address(node);
    addresses_[node] = address;
    if (node != services_.node) services_.peers.connect_to(node, address);
    return true;
}

void Group::forget_address(const std::string &node) {
    if (addresses_.erase(node) > 0 && node != services_.node) services_.peers.release(node);
}

std::string Group::address_of(NodeIndex node) const {
    std::string name = node_name(node);
    auto it = addresses_.find(name);
    return it == addresses_.end() ? name : it->second;
}

}  // namespace dlrover::daemon
