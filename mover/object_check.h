// SPDX-License-Identifier: Apache-2.0
// Whether memory holds what it is said to hold.
#pragma once

#include <cstddef>
#include <span>

#include "ckpt/object_table.h"

namespace dlrover::mover {

struct KnownObject {
    ckpt::ObjectIdentity who;
    ckpt::ObjectPlace place;
    bool parity = false;  ///< of several objects: no table, but a checksum of the whole
};

/// The object lies in `memory` as `place` says, is `who`'s (whatever its lineage, which the daemon knows),
/// and each of its chunks matches its checksum. Reads every byte once.
Status verify_object(std::span<const std::byte> memory, const KnownObject &object);

}  // namespace dlrover::mover
