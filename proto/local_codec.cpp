// SPDX-License-Identifier: Apache-2.0
#include "proto/local_codec.h"

#include "local_generated.h"
#include "proto/codec.h"

namespace dlrover::proto {

Bytes encode_local(const local::MessageT &message) {
    return encode<local::Message>(message, local::MessageIdentifier());
}

Result<local::MessageT> decode_local(std::span<const std::uint8_t> payload) {
    auto message = decode<local::Message>(payload, local::MessageIdentifier());
    if (message.ok() && message->body.type == local::Body::NONE)
        return Status(Code::corrupt, "message without a known body");
    return message;
}

}  // namespace dlrover::proto
