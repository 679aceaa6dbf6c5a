// SPDX-License-Identifier: Apache-2.0
// Writer and verifying reader of the object table (table.fbs, docs/format-object.md).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "ckpt/dtype.h"

namespace dlrover::ckpt {

inline constexpr std::uint64_t max_chunks = std::uint64_t{1} << 22;
inline constexpr std::size_t max_dims = 16;
inline constexpr std::size_t max_name_bytes = 4096;
inline constexpr std::size_t max_skeleton_bytes = std::size_t{64} << 20;
inline constexpr std::size_t max_ledger_bytes = 65536;
inline constexpr std::size_t max_table_bytes = std::size_t{1} << 30;
inline constexpr std::uint64_t object_alignment_bytes = 64;

/// Round up to the alignment of chunks and table; none on overflow.
std::optional<std::uint64_t> align_object_offset(std::uint64_t offset) noexcept;

/// One rectangular piece of a global tensor. The three shapes have one length.
struct ChunkInfo {
    std::string_view name;
    DType dtype = DType::Bytes;
    std::span<const std::uint64_t> global_shape, global_offset, local_shape;
    std::uint32_t replica = 0;
    std::uint64_t offset = 0, bytes = 0, checksum = 0;
    /// Whose object has the bytes, in a chunk of the same name, place, type and shape; none: this one.
    /// With a keeper replica is not 0, and offset and checksum are.
    std::optional<Rank> keeper;
    /// Of more than one block: the hashes that the checksum combines (ckpt/checksum.h). Empty: not known.
    std::span<const std::uint64_t> blocks;
};

/// Of an array of that type; none: more than 2^64.
std::optional<std::uint64_t> shape_bytes(std::span<const std::uint64_t> shape, DType dtype);

/// What tells a chunk from all others, the bytes aside: where two agree, they are the same piece of the same
/// tensor, but for accidents of the hash.
std::uint64_t hash_of_piece(const ChunkInfo &chunk);
bool same_piece(const ChunkInfo &a, const ChunkInfo &b);

/// What is wrong with this chunk: type, lengths, shape inside the global shape, bytes = elements x element
/// size, alignment, what goes with a keeper, blocks that go with the checksum. No overflow whatever the
/// numbers.
Status check_chunk(const ChunkInfo &chunk);

/// Whose object it is.
struct ObjectIdentity {
    TrainStep train_step;
    Rank rank;
    std::uint32_t world_size = 0;
    GenerationId generation;
    std::string lineage;
};

/// corrupt: `found` is of another object than `wanted`; the sentence says by what.
Status check_identity(const ObjectIdentity &wanted, const ObjectIdentity &found);

/// Collects the chunks of one object. Not thread-safe.
class ObjectTableWriter {
  public:
    explicit ObjectTableWriter(ObjectIdentity identity);
    /// Upper bound of what add() adds to the table.
    static std::uint64_t bytes_for(const ChunkInfo &chunk) noexcept;
    /// Takes memory for so much more at once. Only before the first add() it has an effect.
    void reserve(std::uint64_t bytes);
    /// Copies what `chunk` points to. Names may come once per global offset; checked in finish().
    Status add(const ChunkInfo &chunk);
    /// The same of a chunk whose bytes come later: set_hashes() has to follow.
    Status add_unhashed(const ChunkInfo &chunk);
    /// A part of finish()'s work, now.
    void sort_names();
    /// Checksum and blocks of what add_unhashed() added: the hashes of all its blocks, at least one.
    /// Precondition: index < count().
    void set_hashes(std::uint64_t index, std::span<const std::uint64_t> hashes);
    Status set_skeleton(std::string_view json);
    std::uint64_t count() const noexcept { return chunks_.size(); }
    /// Upper bound of what finish() returns now.
    std::uint64_t bytes_bound() const noexcept { return bytes_bound_; }
    /// The table's bytes, checked as the reader will check them. Once, at the end.
    Result<std::vector<std::uint8_t>> finish();
    /// The same, in this object's memory.
    Result<std::span<const std::uint8_t>> finish_in_place();

  private:
    Status add_entry(const ChunkInfo &chunk, std::uint64_t blocks);

    ObjectIdentity identity_;
    std::string skeleton_;
    flatbuffers::FlatBufferBuilder builder_;
    std::vector<flatbuffers::Offset<format::Chunk>> chunks_;
    std::vector<std::uint64_t> hashes_;  ///< of each chunk's name and place
    std::uint64_t bytes_bound_;
};

/// Where the parts of an object lie in its memory, as its writer reported.
struct ObjectPlace {
    std::uint64_t data_bytes = 0, table_offset = 0, table_bytes = 0, table_xxh3 = 0;
};
/// The table's bytes. corrupt: a part lies outside `memory`, the table is too large or has another checksum.
Result<std::span<const std::uint8_t>> find_object_table(std::span<const std::byte> memory,
                                                        const ObjectPlace &place);

/// The verified table. Views into the bytes it was parsed from, which must outlive it.
class ObjectTableView {
  public:
    /// Trusts nothing: structure, counts, every chunk as check_chunk() and inside [0, data_bytes), keepers
    /// other ranks of the world, no two chunks of one name and global offset. The chunks' data is not read.
    static Result<ObjectTableView> parse(std::span<const std::uint8_t> bytes,
                                         std::uint64_t data_bytes = UINT64_MAX);

    ObjectIdentity identity() const;
    std::string_view skeleton() const;
    std::uint64_t count() const;
    /// Precondition: index < count().
    ChunkInfo chunk(std::uint64_t index) const;

  private:
    std::vector<std::uint64_t> aligned_copy_;  ///< only when the bytes were not aligned
    const format::ObjectTable *table_ = nullptr;
};

}  // namespace dlrover::ckpt
