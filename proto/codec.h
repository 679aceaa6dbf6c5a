// SPDX-License-Identifier: Apache-2.0
// Bytes <-> messages of a FlatBuffers schema, verified on arrival. One template serves the local, keeper and
// peer protocols.
#pragma once

#include <algorithm>
#include <span>

#include "base/status.h"
#include "flatbuffers/flatbuffers.h"
#include "proto/frame.h"
#include "proto/message_tree.h"

namespace dlrover::proto {

inline constexpr std::size_t max_message_tables = 200000;
inline constexpr std::size_t max_message_depth = 16;

/// `Root` is the generated root table (local::Message); `identifier` its four letters.
template <typename Root>
Bytes encode(const typename Root::NativeTableType &message, const char *identifier) {
    flatbuffers::FlatBufferBuilder builder(512);
    builder.Finish(Root::Pack(builder, &message), identifier);
    return Bytes(builder.GetBufferPointer(), builder.GetBufferPointer() + builder.GetSize());
}

/// corrupt when the bytes are not a well-formed message with a known body, or would take more memory than a
/// few times their own (message_tree.h).
template <typename Root>
Result<typename Root::NativeTableType> decode(std::span<const std::uint8_t> bytes, const char *identifier) {
    if (bytes.size() < 8 || bytes.size() > max_frame_bytes)
        return Status(Code::corrupt, "message of a wrong size");
    flatbuffers::Verifier verifier(bytes.data(), bytes.size(), max_message_depth,
                                   std::min(max_message_tables, tables_in_tree(bytes.size())));
    if (!verifier.VerifyBuffer<Root>(identifier)) return Status(Code::corrupt, "message does not verify");
    const Root *root = flatbuffers::GetRoot<Root>(bytes.data());
    // The verifier lets a union pass whose type is set and whose table is missing; unpacking it would crash.
    if constexpr (requires { root->body_type(); })
        if (root->body() == nullptr) return Status(Code::corrupt, "message without a body");
    const auto &table = *reinterpret_cast<const flatbuffers::Table *>(root);
    if (!is_tree(table, *Root::MiniReflectTypeTable(), bytes.size()))
        return Status(Code::corrupt, "message with parts that it uses more than once");
    typename Root::NativeTableType message;
    root->UnPackTo(&message);
    if constexpr (requires { message.body.value; })
        if (message.body.value == nullptr) return Status(Code::corrupt, "message with an unknown body");
    return message;
}

}  // namespace dlrover::proto
