// SPDX-License-Identifier: Apache-2.0
// An object opened for reading: table and every chunk verified, here or while the program started.
#pragma once

#include <optional>
#include <unordered_map>

#include "ckpt/object_table.h"
#include "lib/numa.h"
#include "lib/store.h"

namespace dlrover::lib {

/// Whose object is expected.
struct ExpectedObject {
    std::uint32_t rank = 0, world_size = 1;
    std::string lineage;  ///< empty: any
};

/// Immutable after open(): any number of threads may read.
class ObjectReader {
  public:
    /// corrupt: a checksum, a bound or the table is wrong, or it is not the object it should be. unsupported:
    /// saved by a world of another size. `damaged`: the rank in whose object a checksum is wrong, where one
    /// is.
    static Result<ObjectReader> open(const ObjectSource &source, const ExpectedObject &expected,
                                     unsigned threads, std::optional<std::uint32_t> *damaged = nullptr);

    TrainStep train_step() const noexcept { return layout_.train_step; }
    std::uint32_t world_size() const { return table_.identity().world_size; }
    std::uint64_t count() const noexcept { return table_.count(); }
    ckpt::ChunkInfo chunk(std::uint64_t index) const { return table_.chunk(index); }
    /// Precondition: index < count().
    const std::byte *data(std::uint64_t index) const noexcept { return bytes_[index].data; }
    /// Index of the first chunk of that name.
    std::optional<std::uint64_t> find(std::string_view name) const;
    std::string_view skeleton() const { return table_.skeleton(); }
    const std::vector<std::uint8_t> &ledger() const noexcept { return layout_.ledger; }

  private:
    ObjectReader(ObjectLayout layout, ckpt::ObjectTableView table);
    Status check_identity(const ExpectedObject &expected) const;
    Status find_bytes(const ObjectSource &source, std::optional<std::uint32_t> &damaged);
    Status find_with_keepers(const std::vector<KeeperObject> &keepers, std::optional<std::uint32_t> &damaged);
    Status check_data(unsigned threads, const Cpus &near, std::optional<std::uint32_t> &damaged) const;

    /// Of one chunk: here, or in its keeper's object.
    struct Bytes {
        const std::byte *data = nullptr;
        std::uint64_t checksum = 0;
        bool verified = false;
    };
    ObjectLayout layout_;
    ckpt::ObjectTableView table_;
    std::vector<Bytes> bytes_;
    std::unordered_map<std::string_view, std::uint64_t> by_name_;
};

}  // namespace dlrover::lib
