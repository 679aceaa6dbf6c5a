// SPDX-License-Identifier: Apache-2.0
// What a message takes once it is unpacked. In FlatBuffers many places may refer to the same string or table;
// unpacking copies it for each of them, so that a message of 48 KiB can ask for gigabytes. Our encoder writes
// each where it is used: a message is a tree, and unpacked its strings and vectors are no longer than it is.
#pragma once

#include <cstddef>
#include <cstdint>

#include "flatbuffers/flatbuffers.h"

namespace dlrover::proto {

/// A table takes four bytes, and so does what refers to it.
constexpr std::size_t tables_in_tree(std::size_t message_bytes) {
    return message_bytes / 8 + 1;
}

/// Whether all strings and vectors of this table and below, each counted as often as it is referred to, take
/// no more than the message's bytes. Precondition: the message has been verified, with a bound of depth and
/// of tables.
bool is_tree(const flatbuffers::Table &root, const flatbuffers::TypeTable &type, std::size_t message_bytes);

}  // namespace dlrover::proto
