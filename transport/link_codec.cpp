// SPDX-License-Identifier: Apache-2.0
#include "transport/link_codec.h"

#include "peer_link_generated.h"
#include "proto/codec.h"

namespace dlrover::transport {
namespace {

constexpr const char *frame_identifier = "DLN1", *sealed_identifier = "DLS1";

}  // namespace

proto::Bytes encode_frame(const link::FrameT &frame) {
    return proto::encode<link::Frame>(frame, frame_identifier);
}

Result<link::FrameT> decode_frame(std::span<const std::uint8_t> bytes) {
    auto frame = proto::decode<link::Frame>(bytes, frame_identifier);
    if (frame && frame->body.type == link::Body::NONE) return Status(Code::corrupt, "a frame without a body");
    return frame;
}

proto::Bytes encode_sealed(const link::SealedT &sealed) {
    return proto::encode<link::Sealed>(sealed, sealed_identifier);
}

Result<link::SealedT> decode_sealed(std::span<const std::uint8_t> bytes) {
    return proto::decode<link::Sealed>(bytes, sealed_identifier);
}

link::EnvelopeT to_table(PeerEnvelope envelope) {
    link::EnvelopeT table;
    table.kind = static_cast<link::Kind>(envelope.kind);
    table.job_id = envelope.job_id;
    table.step_id = envelope.step_id;
    table.restart_count = envelope.restart_count;
    table.id = envelope.id;
    table.uid = envelope.uid;
    table.payload = std::move(envelope.payload);
    return table;
}

Result<PeerEnvelope> from_table(link::EnvelopeT table) {
    if (table.kind < link::Kind::Group || static_cast<std::uint8_t>(table.kind) > newest_kind)
        return Status(Code::corrupt, "an envelope of an unknown kind");
    PeerEnvelope envelope;
    envelope.kind = static_cast<PeerEnvelope::Kind>(table.kind);
    envelope.job_id = table.job_id;
    envelope.step_id = table.step_id;
    envelope.restart_count = table.restart_count;
    envelope.id = table.id;
    envelope.uid = table.uid;
    envelope.payload = std::move(table.payload);
    return envelope;
}

}  // namespace dlrover::transport
