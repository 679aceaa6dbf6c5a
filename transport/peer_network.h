// SPDX-License-Identifier: Apache-2.0
// Authenticated links between the daemons of a cluster, as a daemon sees them. Best effort: a message may be
// lost when a link breaks, is never duplicated or altered, and keeps its order on one link.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace dlrover::transport {

/// The highest kind below.
inline constexpr std::uint8_t newest_kind = 7;

/// What travels on a link. The sender's node name is not in it: the link knows it from the handshake.
struct PeerEnvelope {
    enum class Kind : std::uint8_t {
        group = 1,    ///< payload: proto/peer.fbs GroupMessage
        request = 2,  ///< payload: a proto/local.fbs StatusRequest or EventsRequest, asked for `uid`
        reply = 3,    ///< payload: the answer; `id` is the request's
        flush = 4,    ///< payload: proto/flush.fbs Word
        move = 5,     ///< payload: proto/move.fbs Word
        join = 6,     ///< payload: proto/join.fbs Word
        pmix = 7,     ///< payload: proto/pmix.fbs Word
    };
    Kind kind = Kind::group;
    std::uint32_t job_id = 0, step_id = 0;  ///< the group
    std::uint32_t restart_count = 0;        ///< Slurm's; another run of the job is another group
    std::uint32_t id = 0;                   ///< request and reply
    std::uint32_t uid = 0;                  ///< request: the asker, checked by the asking daemon
    std::vector<std::uint8_t> payload;
};

/// Thread: the event loop's only; callbacks come on it, never from inside send() or connect_to().
class PeerNetwork {
  public:
    struct Callbacks {
        std::function<void(const std::string &node, PeerEnvelope envelope)> on_message;
        std::function<void(const std::string &node, bool up)> on_link;
    };

    virtual ~PeerNetwork() = default;
    virtual void set_callbacks(Callbacks callbacks) = 0;
    /// Keeps a link to `node` up (whoever connects) until as many release() calls. address: Slurm's NodeAddr.
    virtual void connect_to(const std::string &node, const std::string &address) = 0;
    virtual void release(const std::string &node) = 0;
    /// Queues it; dropped when the link is down or its queue is full.
    virtual void send(const std::string &node, PeerEnvelope envelope) = 0;
    virtual bool up(const std::string &node) const = 0;
    /// false: that node's daemon is of a version without this kind; such an envelope is dropped.
    virtual bool takes(const std::string &node, PeerEnvelope::Kind kind) const = 0;
    /// This side's, of a link that is up, numeric; empty: there is none. All leave by the address that the
    /// system chooses for them.
    virtual std::string own_address() const { return ""; }
};

}  // namespace dlrover::transport
