// SPDX-License-Identifier: Apache-2.0
// Mutual authentication of two daemons (docs/protocol-peer.md). Pure: frames and credentials in, frames and
// wishes out.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "transport/credentials.h"
#include "transport/link_codec.h"
#include "transport/secure_channel.h"

namespace dlrover::transport {

struct LinkIdentity {
    std::string cluster, node;
    std::uint64_t instance = 0;  ///< random, of this process
    std::uint32_t trusted_uid = 0;
    std::uint16_t protocol_min = link_protocol_min, protocol_max = link_protocol_max;
};

/// What to do next; all may be empty.
struct HandshakeStep {
    std::vector<proto::Bytes> send;  ///< payloads of frames
    std::optional<std::string>
        authorize;  ///< accepting side: may this name come from there? then on_authorized()
    std::optional<proto::Bytes> to_encode;  ///< make a credential, then on_encoded()
    std::optional<std::string> to_decode;   ///< open a credential, then on_decoded()
    bool done = false;
};

/// Order of calls: start() or the first on_frame(), then what the steps ask for. After a failure: none. A
/// failed Status tells what to say to the peer by refusal_of().
class Handshake {
  public:
    /// Connecting side: calls `wanted`.
    Handshake(LinkIdentity self, std::string wanted);
    /// Accepting side.
    explicit Handshake(LinkIdentity self);
    ~Handshake();

    HandshakeStep start();  ///< connecting side only
    Result<HandshakeStep> on_frame(std::span<const std::uint8_t> payload);
    Result<HandshakeStep> on_authorized();
    Result<HandshakeStep> on_encoded(std::string credential);
    Result<HandshakeStep> on_decoded(const Voucher &voucher);

    const std::string &peer() const { return peer_; }  ///< claimed; proved when done
    std::uint64_t peer_instance() const { return peer_instance_; }
    std::uint16_t protocol() const { return protocol_; }
    /// Only when done.
    ChannelKeys keys() const;
    /// Which Reason fits the last failure.
    link::Reason refusal_reason() const { return reason_; }

  private:
    enum class Wait { start, offer, authorization, challenge, encoding, proof, decoding, over };
    Result<HandshakeStep> on_offer(link::OfferT offer, std::span<const std::uint8_t> bytes);
    Result<HandshakeStep> on_challenge(link::ChallengeT challenge, std::span<const std::uint8_t> bytes);
    Result<HandshakeStep> on_proof(link::ProofT proof);
    HandshakeStep ask_for_credential();
    link::SealedT expected(link::Side side) const;
    void end_transcript(std::span<const std::uint8_t> challenge);
    Status fail(link::Reason reason, Code code, std::string text);

    LinkIdentity self_;
    bool connecting_;
    Wait wait_;
    link::Reason reason_ = link::Reason::Unknown;
    std::string peer_;
    std::uint16_t protocol_ = 0;
    std::uint64_t peer_instance_ = 0;
    proto::Bytes own_nonce_, peer_nonce_, offer_, transcript_, own_secret_, peer_secret_;
};

/// The Refused frame that tells the peer why.
proto::Bytes refusal(link::Reason reason, const std::string &text);
/// Names of nodes and clusters: 1 to 255 letters, digits, '.', '-', '_'.
bool good_name(std::string_view name);

}  // namespace dlrover::transport
