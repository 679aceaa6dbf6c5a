// SPDX-License-Identifier: Apache-2.0
#include "lib/stored_object.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <tuple>

#include "ckpt/block_kernel.h"
#include "lib/stored_chunks.h"

namespace dlrover::lib {
namespace {

constexpr std::uint64_t max_object_bytes = std::uint64_t{1} << 46;

/// Where the chunks end. corrupt: they share bytes, so that the object can not be what was saved.
Result<std::uint64_t> data_end(const ckpt::ObjectTableView &table) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> extents;
    for (std::uint64_t i = 0; i < table.count(); ++i) {
        ckpt::ChunkInfo chunk = table.chunk(i);
        extents.emplace_back(chunk.offset, chunk.bytes);
    }
    std::sort(extents.begin(), extents.end());
    std::uint64_t end = 0;
    for (auto [offset, bytes] : extents) {
        if (bytes != 0 && offset < end) return Status(Code::corrupt, "two chunks share bytes of the object");
        if (offset > max_object_bytes || bytes > max_object_bytes - offset)
            return Status(Code::corrupt, "the object is larger than any memory");
        end = std::max(end, offset + bytes);
    }
    return end;
}

/// An object without its data: memory with the table behind the place for it.
Result<StoredObject> make_room(std::span<const std::uint8_t> table, std::uint64_t data_bytes, TrainStep step,
                               std::span<const std::uint8_t> ledger) {
    std::uint64_t offset = *ckpt::align_object_offset(data_bytes);
    auto memory = ckpt::Mapping::anonymous(offset + table.size());
    if (!memory) return memory.take_status();
    ::madvise(memory->base(), memory->bytes(), MADV_HUGEPAGE);
    std::memcpy(memory->base() + offset, table.data(), table.size());
    std::uint64_t hash = ckpt::block_kernel().hash(table.data(), table.size());
    return StoredObject{std::move(*memory),
                        {step, data_bytes, offset, table.size(), hash, {ledger.begin(), ledger.end()}}};
}

Status make_read_only(const StoredObject &object) {
    if (::mprotect(object.memory.base(), object.memory.bytes(), PROT_READ) == 0) return {};
    return Status::from_errno("mprotect of the checkpoint's memory");
}

/// Name, type, checksum, offset, shape: whoever has such a chunk has its bytes.
using PieceKey = std::tuple<std::string_view, ckpt::DType, std::uint64_t, std::vector<std::uint64_t>,
                            std::vector<std::uint64_t>>;

PieceKey key_of(const ckpt::ChunkInfo &chunk) {
    return {chunk.name,
            chunk.dtype,
            chunk.checksum,
            {chunk.global_offset.begin(), chunk.global_offset.end()},
            {chunk.local_shape.begin(), chunk.local_shape.end()}};
}

using Missing = std::multimap<PieceKey, std::byte *>;

void take_from(const ckpt::StorageFile &file, std::uint32_t rank, Missing &missing,
               std::vector<ChunkRead> &reads) {
    for (std::uint64_t i = 0; i < file.table().count() && !missing.empty(); ++i) {
        if (!file.stored(i)) continue;
        auto [first, last] = missing.equal_range(key_of(file.table().chunk(i)));
        for (auto it = first; it != last; ++it) reads.push_back({rank, i, it->second});
        missing.erase(first, last);
    }
}

/// Finds who has the replicas' bytes, lowest rank first.
Status find_missing(StoredFiles &files, std::uint32_t rank, Missing missing, std::vector<ChunkRead> &reads) {
    for (std::uint32_t other = 0; other < files.ranks() && !missing.empty(); ++other) {
        if (other == rank) continue;
        auto file = files.rank(other);
        if (!file) return file.take_status();
        take_from(**file, other, missing, reads);
        files.release();
    }
    if (missing.empty()) return {};
    std::string name(std::get<0>(missing.begin()->first).substr(0, 200));
    return Status(Code::corrupt, "chunk \"" + name + "\" of rank " + std::to_string(rank) +
                                     " is a replica, and no rank's file has its bytes");
}

/// The memory of missing chunks is known by its place, so their keys may point into the table.
Status plan_reads(StoredFiles &files, std::uint32_t rank, const ckpt::StorageFile &own, std::byte *base,
                  std::vector<ChunkRead> &reads) {
    Missing missing;
    for (std::uint64_t i = 0; i < own.table().count(); ++i) {
        ckpt::ChunkInfo chunk = own.table().chunk(i);
        if (own.stored(i))
            reads.push_back({rank, i, base + chunk.offset});
        else if (chunk.bytes != 0)
            missing.emplace(key_of(chunk), base + chunk.offset);
    }
    return find_missing(files, rank, std::move(missing), reads);
}

}  // namespace

Result<StoredObject> read_stored_object(StoredFiles &files, std::uint32_t rank, unsigned threads) {
    auto own = files.rank(rank);
    if (!own) return own.take_status();
    const ckpt::StorageFile &file = **own;
    auto end = data_end(file.table());
    if (!end) return end.take_status();
    auto object = make_room(file.table_bytes(), *end, files.manifest().id.step, file.ledger());
    if (!object) return object;
    std::vector<ChunkRead> reads;
    DLROVER_TRY(plan_reads(files, rank, file, object->memory.base(), reads));
    DLROVER_TRY(read_chunks(files, reads, threads));
    DLROVER_TRY(make_read_only(*object));
    return object;
}

Status read_stored_chunk(StoredFiles &files, std::uint32_t rank, std::uint64_t index, std::byte *out,
                         unsigned threads) {
    auto own = files.rank(rank);
    if (!own) return own.take_status();
    std::vector<ChunkRead> reads;
    ckpt::ChunkInfo chunk = (*own)->table().chunk(index);
    if ((*own)->stored(index))
        reads.push_back({rank, index, out});
    else if (chunk.bytes != 0)
        DLROVER_TRY(find_missing(files, rank, Missing{{key_of(chunk), out}}, reads));
    return read_chunks(files, reads, threads);
}

Result<StoredObject> empty_stored_object(StoredFiles &files, std::uint32_t rank, std::uint32_t world_size) {
    auto like = files.rank(files.ranks() == world_size ? rank : 0);
    if (!like) return like.take_status();
    ckpt::ObjectIdentity who = (*like)->identity();
    who.rank = Rank(rank);
    who.world_size = world_size;
    ckpt::ObjectTableWriter writer(std::move(who));
    DLROVER_TRY(writer.set_skeleton((*like)->table().skeleton()));
    auto table = writer.finish();
    if (!table) return table.take_status();
    auto object = make_room(*table, 0, files.manifest().id.step, (*like)->ledger());
    if (object.ok()) DLROVER_TRY(make_read_only(*object));
    return object;
}

}  // namespace dlrover::lib
