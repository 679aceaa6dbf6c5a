// SPDX-License-Identifier: Apache-2.0
// Sealed objects in memfds, as a daemon has them.
#pragma once

#include <boost/test/unit_test.hpp>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "proto/local_codec.h"
#include "storage_fixture.h"

namespace dlrover::test {

namespace local = proto::local;
inline constexpr char lineage[] = "lab/1000/job a";  // of ckpt::test::Maker

/// A sealed object in a memfd, as a daemon has it.
struct MemoryObject {
    explicit MemoryObject(const ckpt::SealedObject &object);
    local::StoreObjectT order(CheckpointId id, std::uint32_t world_size, std::uint32_t rank) const;
    void flip(std::uint64_t at) const;

    UniqueFd memory;
    std::uint64_t bytes = 0, data_bytes = 0, table_offset = 0, table_bytes = 0, table_xxh3 = 0;
    std::vector<std::uint8_t> ledger;
};

/// Step `step` of the fixture's generation.
CheckpointId checkpoint(std::uint64_t step);
/// Rank `rank`'s object of a world: one half of a tensor of `elements` float32 each, and a value of its own.
MemoryObject make_object(std::uint64_t step, std::uint32_t rank, std::uint32_t world,
                         std::uint64_t elements = 3000);
}  // namespace dlrover::test
