// SPDX-License-Identifier: Apache-2.0
// What grows with a group, so that its leader does not have more to do than it can: bench/scale measures it.
#pragma once

#include <algorithm>

#include "elastic/types.h"

namespace dlrover::elastic {

/// Up to so many nodes a leader looks at all of them with each word of one.
inline constexpr std::size_t looks_at_once = 512;
inline constexpr Duration look_each = std::chrono::microseconds(10);
/// A heartbeat for each node and its answer take the leader 15 to 25 us (bench/scale).
inline constexpr Duration heartbeat_each = std::chrono::microseconds(40);

/// The timings that are set, for a step of so many nodes. Heartbeats are as far apart as the leader needs;
/// where five of them are more than leader_silence, that and what has to be longer grow with it. By the
/// defaults that begins with 5000 nodes.
inline Timings suited(const Timings &set, std::size_t step_nodes) {
    Timings t = set;
    t.heartbeat = std::max(set.heartbeat, heartbeat_each * static_cast<std::int64_t>(step_nodes));
    if (t.heartbeat == set.heartbeat || t.heartbeat * 5 <= t.leader_silence) return t;
    for (Duration *waits : {&t.election, &t.election_step, &t.agent_lease, &t.fence_wait})
        *waits = Duration(waits->count() * (t.heartbeat * 5).count() / set.leader_silence.count());
    t.leader_silence = t.heartbeat * 5;
    return t;
}

/// Timings and pauses for as many nodes as the step has: all members count these alike, whoever has joined.
inline void suit_size(GroupConfig &config) {
    std::size_t nodes = config.step_nodes > 0 ? config.step_nodes : config.nodes.size();
    config.timings = suited(config.timings, nodes);
    config.look_pause = nodes > looks_at_once ? look_each * static_cast<std::int64_t>(nodes) : Duration(0);
}

}  // namespace dlrover::elastic
