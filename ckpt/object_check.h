// SPDX-License-Identifier: Apache-2.0
// Whether memory holds what it is said to hold.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "ckpt/object_table.h"

namespace dlrover::ckpt {

struct KnownObject {
    ObjectIdentity who;
    ObjectPlace place;
    bool parity = false;  ///< of several objects: no table, but a checksum of the whole
};

/// The object lies in `memory` as `place` says, is `who`'s (whatever its lineage, which the daemon knows),
/// and each of its chunks matches its checksum (not those that another rank's object has for it). Reads every
/// byte once. corrupt: memory does not hold what it held; stale: it is another object, or `stop`, which is
/// asked before each block, said so.
Status verify_object(std::span<const std::byte> memory, const KnownObject &object,
                     const std::atomic<bool> *stop = nullptr);

/// chunk_checksum(), for long ones. None: `stop` said so.
std::optional<std::uint64_t> checksum_unless(const std::atomic<bool> *stop, std::span<const std::byte> bytes);

/// Its parts, for who has the checksums already. corrupt, stale: as above.
Status check_owner(const ObjectTableView &table, const KnownObject &object);
Status check_checksum(const ChunkInfo &chunk, std::uint64_t found);
Status check_parity(std::uint64_t found, const ObjectPlace &place);

}  // namespace dlrover::ckpt
