// SPDX-License-Identifier: Apache-2.0
// A group's checkpoints on other nodes: what GroupMover and the rest of the group say to each other.
#include "daemon/group.h"
#include "transport/sockets.h"

namespace dlrover::daemon {

bool Group::has_copies() const {
    const std::string &mode = registration().options->redundancy;
    return !mode.empty() && mode != "single";
}

/// Slurm has to be asked where there are other nodes; what it says may be a name.
std::optional<std::string> Group::own_address() const {
    if (node_count() < 2) return "";
    auto found = addresses_.find(services_.node);
    if (found == addresses_.end()) return std::nullopt;
    return found->second;
}

void Group::create_mover() {
    auto address = own_address();
    if (mover_ || !address) return;
    GroupMover::Hooks hooks;
    hooks.changed = [this] { on_mover_changed(); };
    mover_ = std::make_unique<GroupMover>(
        GroupMover::Services{services_.loop, services_.port, services_.settings},
        transport::parse_address(*address).ok() ? *address : "", std::move(hooks));
}

void Group::on_mover_changed() {}

void Group::on_mover_message(const Client &from, const local::MessageT &message) {
    if (!has_copies() || record_.ended)
        return services_.port.fail(from.id, message.id, local::Refusal::Stale,
                                   "this step has no checkpoints to move");
    create_mover();
    if (!mover_)
        return services_.port.fail(from.id, message.id, local::Refusal::NotReady,
                                   "Slurm has not said yet where this node is: try again");
    if (message.body.AsMoverHello()) return mover_->on_hello(from, message.id);
    if (!mover_->on_message(from, message))
        services_.port.fail(from.id, message.id, local::Refusal::BadMessage, "a mover has no such message");
}

}  // namespace dlrover::daemon
