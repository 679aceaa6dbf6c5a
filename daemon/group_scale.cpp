// SPDX-License-Identifier: Apache-2.0
// How many nodes a person, or a rank of the program, wants in the world (dlrover scale).
#include <algorithm>

#include "base/count_of.h"
#include "common/log.h"
#include "daemon/group.h"

namespace dlrover::daemon {
namespace {

using State = local::ScaleState;

local::ScaleReplyT reply_of(State state, std::string text = {}) {
    local::ScaleReplyT reply;
    reply.state = state;
    reply.text = std::move(text);
    return reply;
}

}  // namespace

/// Taken: nothing is in the way.
local::ScaleReplyT Group::scale_refusal(std::uint64_t nodes) const {
    if (over()) return reply_of(State::NotNow, "it has ended");
    if (!member_ || !member_->view().world || !world_)
        return reply_of(State::NotNow, "its ranks have not begun yet: ask again when they run");
    const auto &o = *registration().options;
    std::string limits = std::to_string(o.min_nodes) + " to " + std::to_string(o.max_nodes) +
                         " nodes (--dlrover-elastic=" + std::to_string(o.min_nodes) + ":" +
                         std::to_string(o.max_nodes) + ")";
    if (nodes < o.min_nodes || nodes > o.max_nodes)
        return reply_of(State::OutOfLimits, "it can have " + limits + ", not " + std::to_string(nodes));
    if (nodes % std::max(o.node_unit, 1u) != 0)
        return reply_of(State::OutOfLimits, "it can have " + limits + ", in multiples of " +
                                                std::to_string(o.node_unit) + " (--dlrover-node-unit)");
    if (!has_copies() && o.ckpt_dir.empty())
        return reply_of(State::Unable,
                        "it has no copies in memory (--dlrover-redundancy) and no folder "
                        "(--dlrover-ckpt-dir): a world of another size would have nothing "
                        "to go on from");
    return reply_of(State::Taken);
}

local::ScaleReplyT Group::take_scale(std::uint64_t nodes, const std::string &who) {
    auto reply = scale_refusal(nodes);
    if (reply.state != State::Taken) return reply;
    log::info({job(), step()}, who + " wants " + count_of(nodes, "node"));
    feed(elastic::LocalScale{static_cast<std::uint32_t>(nodes)});
    return reply;
}

local::ScaleReplyT Group::scale(const local::ScaleRequestT &request, std::uint32_t uid) {
    if (record_.evicted || is_kept()) return {};
    return take_scale(request.nodes, "user " + std::to_string(uid));
}

/// From what is wanted now. Refusals are told in the time line too: PMIx has no place for words.
local::PmixScaleReplyT Group::pmix_scale(const local::PmixScaleRequestT &request) {
    auto view = member_ ? member_->view() : elastic::MemberView{};
    std::uint64_t now = view.wanted_nodes > 0 ? view.wanted_nodes : registration().options->max_nodes;
    std::uint64_t more = now + request.more;
    auto taken = take_scale(more > request.fewer ? more - request.fewer : 0, "a rank");
    std::string wanted =
        count_of(request.more + request.fewer, "node") + (request.more > 0 ? " more" : " fewer");
    if (taken.state != State::Taken)
        add_event(proto::EventKind::Warning,
                  "The program's request for " + wanted + " is refused: " + taken.text + ".");
    local::PmixScaleReplyT reply;
    reply.state = taken.state;
    reply.text = std::move(taken.text);
    return reply;
}

bool Group::is_released(NodeIndex node) const {
    return promise_ &&
           std::ranges::find(promise_->scaling.released, node) != promise_->scaling.released.end();
}

/// Nodes have come or gone since it was told last.
void Group::tell_allocation() {
    std::uint32_t nodes = 0;
    for (std::uint32_t i = 0; i < node_count(); ++i) nodes += !is_removed(NodeIndex(i));
    auto before = std::exchange(nodes_told_, nodes);
    if (before && *before != nodes && world_) tell(local::PmixEventKind::AllocationChanged, nodes);
}

}  // namespace dlrover::daemon
