// SPDX-License-Identifier: Apache-2.0
// One connection to one peer: handshake, then sealed frames, probes, the end.
#pragma once

#include <optional>

#include "transport/connection.h"
#include "transport/handshake.h"
#include "transport/sockets.h"

namespace dlrover::transport {

struct SessionLimits {
    ConnectionLimits connection;
    EventLoop::Time handshake_timeout = std::chrono::seconds(5);
    EventLoop::Time probe = std::chrono::seconds(2);
    EventLoop::Time dead_after = std::chrono::seconds(8);
    std::uint8_t kinds = newest_kind;  ///< of envelopes that this side takes
};

/// Thread: the loop's. The session may be ended, but not destroyed, from inside its callbacks.
class PeerSession : public std::enable_shared_from_this<PeerSession> {
  public:
    template <typename T>
    using Answer = std::function<void(Result<T>)>;
    struct Verdict {
        bool guest = false;  ///< may ask, nothing more
    };
    /// The first three answer later, or never.
    struct Callbacks {
        std::function<void(PeerSession &, Answer<Verdict>)> authorize;
        std::function<void(proto::Bytes, Answer<std::string>)> encode;
        std::function<void(std::string, Answer<Voucher>)> decode;
        std::function<void(PeerSession &)> on_up;
        std::function<void(PeerSession &, PeerEnvelope)> on_message;
        std::function<void(PeerSession &)> on_want;         ///< peer_wants() has changed
        std::function<void(PeerSession &, Status)> on_end;  ///< once; not after close()
    };

    PeerSession(EventLoop &loop, SessionLimits limits, SocketAddress remote, Callbacks callbacks);
    /// `wanted`: this side connected, to that node. Once.
    void start(UniqueFd socket, LinkIdentity self, std::optional<std::string> wanted, bool we_want);

    void send(PeerEnvelope envelope);
    void send_want(bool we_want);
    /// Says why, if it can, and ends. No callback any more.
    void close(link::Reason reason, const std::string &text);

    bool up() const { return up_; }
    bool initiated() const { return initiated_; }
    bool guest() const { return guest_; }
    bool peer_wants() const { return peer_wants_; }
    bool takes(PeerEnvelope::Kind kind) const { return static_cast<std::uint8_t>(kind) <= peer_kinds_; }
    const std::string &peer() const { return handshake_->peer(); }
    std::uint64_t peer_instance() const { return handshake_->peer_instance(); }
    const SocketAddress &remote() const { return remote_; }
    /// Numeric; empty before start(), or where the kernel does not tell it.
    const std::string &own_address() const { return own_address_; }

  private:
    void on_payload(proto::Bytes payload);
    void on_sealed(std::span<const std::uint8_t> payload);
    void on_body(link::FrameT frame);
    void on_ready(const link::ReadyT &ready);
    void on_envelope(link::EnvelopeT envelope);
    void apply(Result<HandshakeStep> step);
    void ask(HandshakeStep &step);
    void establish();
    void send_sealed(const proto::Bytes &body);
    void tick();
    void fail(Status why);
    template <typename T, typename Use>
    Answer<T> answer(Use use);

    EventLoop &loop_;
    SessionLimits limits_;
    SocketAddress remote_;
    std::string own_address_;
    Callbacks callbacks_;
    std::optional<Handshake> handshake_;
    std::optional<SecureChannel> channel_;
    std::optional<Connection> connection_;
    EventLoop::Handle timer_;
    bool initiated_ = false, we_want_ = false, peer_wants_ = false, guest_ = false, up_ = false,
         over_ = false;
    std::uint8_t peer_kinds_ = 0;
};

}  // namespace dlrover::transport
