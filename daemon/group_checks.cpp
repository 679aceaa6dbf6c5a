// SPDX-License-Identifier: Apache-2.0
// Nodes that were lost and come back: when Slurm may be asked for them again, and what a group's check
// (elastic::RunCheck) does here.
#include <algorithm>

#include "ckpt/cgroup_memory.h"
#include "common/log.h"
#include "daemon/group.h"

namespace dlrover::daemon {

GroupCheck &Group::check() {
    if (check_) return *check_;
    GroupCheck::Hooks hooks;
    hooks.send = [this](NodeIndex to, const MoveWord &word) {
        send_envelope(node_name(to), transport::PeerEnvelope::Kind::move, encode_move_word(word));
    };
    hooks.address_of = [this](NodeIndex node) { return address_of(node); };
    hooks.mover = [this] { return mover_ && mover_->ready() ? mover_.get() : nullptr; };
    hooks.room = [this] { return room_for_check(); };
    hooks.done = [this](elastic::LocalCheck result) { feed_later(std::move(result)); };
    check_ = std::make_unique<GroupCheck>(services_.loop, std::move(hooks));
    return *check_;
}

/// The mover touches the memory, and so the job is charged for it: its ranks must not feel that.
Status Group::room_for_check() const {
    constexpr std::uint64_t wanted = 2 * GroupCheck::bytes;
    for (const auto &[task, agent] : agents_) {
        auto cgroup = agent.pid > 0 ? ckpt::cgroup_memory(std::to_string(agent.pid)) : std::nullopt;
        if (cgroup && cgroup->free_bytes() < wanted)
            return Status(Code::resource_exhausted, services_.node + " has no memory for a check");
    }
    return {};
}

void Group::act(elastic::RunCheck &action) {
    check().run(action);
}

void Group::act(elastic::NodeUnfit &action) {
    std::string node = node_name(action.node), reason = "dlrover: " + log::one_line(action.text);
    if (!action.its_fault || !services_.settings.node.drain_failed) return;
    services_.slurm.drain_node(node, reason, [this, alive = alive_, node](const Status &status) {
        if (!*alive) return;
        add_event(proto::EventKind::Warning, status.ok()
                                                 ? node + " is drained: its check failed."
                                                 : node + " could not be drained: " + status.message() + ".");
    });
}

void Group::note_removed() {
    if (!promise_) return;
    for (NodeIndex node : promise_->removed) removed_at_.emplace(node, services_.loop.now());
    tell_allocation();
}

/// So long a dead node may look alive to Slurm.
EventLoop::Time Group::distrust() const {
    const auto *site = services_.site && services_.site->known() ? &*services_.site->known() : nullptr;
    EventLoop::Time silence = std::chrono::seconds(site ? site->slurmd_timeout_s : 300);
    return std::max<EventLoop::Time>(services_.settings.node.trust_again, 2 * silence);
}

bool Group::is_excluded(const std::string &node) const {
    if (node == registration().batch_host) return true;
    const auto &names = registration().node_names;
    for (std::uint32_t i = 0; i < names.size(); ++i) {
        if (names[i] != node || is_released(NodeIndex(i))) continue;
        auto since = removed_at_.find(NodeIndex(i));
        bool is_new = since == removed_at_.end() || services_.loop.now() - since->second < distrust();
        if (is_new || !has_mover()) return true;
    }
    return false;
}

}  // namespace dlrover::daemon
