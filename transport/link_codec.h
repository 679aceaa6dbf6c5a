// SPDX-License-Identifier: Apache-2.0
// Peer link frames <-> bytes, and the daemon's envelope <-> its table. Everything is verified.
#pragma once

#include "peer_link_types.h"
#include "proto/frame.h"
#include "transport/peer_network.h"

namespace dlrover::transport {

namespace link = proto::link;

inline constexpr std::uint16_t link_protocol_min = 1, link_protocol_max = 1;

proto::Bytes encode_frame(const link::FrameT &frame);
Result<link::FrameT> decode_frame(std::span<const std::uint8_t> bytes);
proto::Bytes encode_sealed(const link::SealedT &sealed);
Result<link::SealedT> decode_sealed(std::span<const std::uint8_t> bytes);

template <typename BodyT>
proto::Bytes encode_body(BodyT body) {
    link::FrameT frame;
    frame.body.Set(std::move(body));
    return encode_frame(frame);
}

link::EnvelopeT to_table(PeerEnvelope envelope);
/// corrupt: a kind that this version does not know.
Result<PeerEnvelope> from_table(link::EnvelopeT table);

}  // namespace dlrover::transport
