// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/parcel.h"

#include "pmix_generated.h"
#include "proto/codec.h"

namespace dlrover::pmix {
namespace {

namespace wire = proto::pmix;
constexpr const char *message_identifier = "DLX2", *parcel_identifier = "DLX3";

template <typename EnumT>
bool is_in(EnumT value, EnumT first, EnumT last) {
    return value >= first && value <= last;
}

}  // namespace

proto::Bytes encode_message(const Message &message) {
    return proto::encode<wire::Message>(message, message_identifier);
}

Result<Message> decode_message(std::span<const std::uint8_t> bytes) {
    auto message = proto::decode<wire::Message>(bytes, message_identifier);
    if (!message) return message;
    if (!is_in(message->kind, wire::MessageKind::Contribute, wire::MessageKind::Event) ||
        !is_in(message->outcome, Outcome::Done, Outcome::Duplicate))
        return Status(Code::corrupt, "a message of an unknown kind");
    if (message->bytes.size() > max_data_bytes) return Status(Code::corrupt, "a message with too much data");
    return message;
}

proto::Bytes encode_parcel(const Parcel &parcel) {
    return proto::encode<wire::Parcel>(parcel, parcel_identifier);
}

Result<Parcel> decode_parcel(std::span<const std::uint8_t> bytes) {
    auto parcel = proto::decode<wire::Parcel>(bytes, parcel_identifier);
    if (!parcel) return parcel;
    if (!is_in(parcel->kind, wire::ParcelKind::Piece, wire::ParcelKind::Received))
        return Status(Code::corrupt, "a parcel of an unknown kind");
    if (parcel->kind == wire::ParcelKind::Received) return parcel;
    bool fits = parcel->total <= max_message_bytes && parcel->at < parcel->total && !parcel->bytes.empty() &&
                parcel->bytes.size() <= max_piece_bytes && parcel->bytes.size() <= parcel->total - parcel->at;
    if (!fits) return Status(Code::corrupt, "a piece that is not inside its message");
    return parcel;
}

}  // namespace dlrover::pmix
