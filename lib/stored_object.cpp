// SPDX-License-Identifier: Apache-2.0
#include "lib/stored_object.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <unordered_map>

#include "ckpt/block_kernel.h"
#include "lib/stored_chunks.h"

namespace dlrover::lib {
namespace {

constexpr std::uint64_t max_object_bytes = std::uint64_t{1} << 46;
constexpr char too_large[] = "the object is larger than any memory";

/// Where the chunks that the object has itself end. corrupt: they share bytes, so that the object can not be
/// what was saved.
Result<std::uint64_t> data_end(const ckpt::ObjectTableView &table) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> extents;
    for (std::uint64_t i = 0; i < table.count(); ++i)
        if (ckpt::ChunkInfo chunk = table.chunk(i); !chunk.keeper)
            extents.emplace_back(chunk.offset, chunk.bytes);
    std::sort(extents.begin(), extents.end());
    std::uint64_t end = 0;
    for (auto [offset, bytes] : extents) {
        if (bytes != 0 && offset < end) return Status(Code::corrupt, "two chunks share bytes of the object");
        if (offset > max_object_bytes || bytes > max_object_bytes - offset)
            return Status(Code::corrupt, too_large);
        end = std::max(end, offset + bytes);
    }
    return end;
}

/// Where each chunk goes: those that others keep behind the rest. The last entry is the end of all.
Result<std::vector<std::uint64_t>> lay_out(const ckpt::ObjectTableView &table) {
    auto end = data_end(table);
    if (!end) return end.take_status();
    std::vector<std::uint64_t> offsets;
    for (std::uint64_t i = 0; i < table.count(); ++i) {
        ckpt::ChunkInfo chunk = table.chunk(i);
        offsets.push_back(chunk.keeper ? *ckpt::align_object_offset(*end) : chunk.offset);
        if (!chunk.keeper) continue;
        if (chunk.bytes > max_object_bytes - offsets.back()) return Status(Code::corrupt, too_large);
        *end = offsets.back() + chunk.bytes;
    }
    offsets.push_back(*end);
    return offsets;
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
                        {step, data_bytes, offset, table.size(), hash, {ledger.begin(), ledger.end()}},
                        {}};
}

Status make_read_only(const StoredObject &object) {
    if (::mprotect(object.memory.base(), object.memory.bytes(), PROT_READ) == 0) return {};
    return Status::from_errno("mprotect of the checkpoint's memory");
}

Status damaged(const ckpt::ChunkInfo &chunk, std::uint32_t rank, const std::string &what) {
    return Status(Code::corrupt, "chunk \"" + std::string(chunk.name.substr(0, 200)) + "\" of rank " +
                                     std::to_string(rank) + what);
}

/// A chunk whose bytes are in another rank's file.
struct Missing {
    ckpt::ChunkInfo chunk;
    std::uint64_t checksum = 0;
    std::byte *to = nullptr;
    /// The same piece with other bytes: what counts where nobody has stored those with the checksum, and all
    /// that have stored the piece agree.
    std::optional<ChunkRead> instead;
    std::uint64_t instead_checksum = 0;
    bool contradiction = false;
};

/// By hash_of_piece().
using MissingChunks = std::unordered_multimap<std::uint64_t, Missing>;

/// Of the chunks that other ranks keep: theirs.
class Checksums {
  public:
    Checksums(StoredFiles &files, std::uint32_t rank) : files_(files), rank_(rank) {}

    Result<std::uint64_t> of(const ckpt::ChunkInfo &chunk) {
        if (!chunk.keeper) return chunk.checksum;
        std::uint32_t keeper = chunk.keeper->value();
        DLROVER_TRY(read(keeper));
        const auto &there = pieces_[keeper];
        auto found = there.find(ckpt::hash_of_piece(chunk));
        if (found != there.end())
            if (auto info = files_.table(keeper).chunk(found->second); ckpt::same_piece(info, chunk))
                return info.checksum;
        return damaged(chunk, rank_,
                       " should be in the object of rank " + std::to_string(keeper) + ", and is not");
    }

  private:
    Status read(std::uint32_t keeper) {
        if (pieces_.contains(keeper)) return {};
        if (keeper >= files_.ranks())
            return Status(Code::corrupt, "a chunk is kept by a rank that did not save");
        auto file = files_.rank(keeper);
        if (!file) return file.take_status();
        const ckpt::ObjectTableView &table = (*file)->table();
        for (std::uint64_t i = 0; i < table.count(); ++i)
            if (ckpt::ChunkInfo chunk = table.chunk(i); !chunk.keeper)
                pieces_[keeper].emplace(ckpt::hash_of_piece(chunk), i);
        files_.release();
        return {};
    }

    StoredFiles &files_;
    std::uint32_t rank_;
    std::map<std::uint32_t, std::unordered_map<std::uint64_t, std::uint64_t>> pieces_;
};

void take_piece(Missing &missing, const ckpt::ChunkInfo &there, ChunkRead read) {
    if (!missing.instead) {
        missing.instead = read;
        missing.instead_checksum = there.checksum;
    }
    missing.contradiction = missing.contradiction || there.checksum != missing.instead_checksum;
}

void take_from(const ckpt::StorageFile &file, std::uint32_t rank, MissingChunks &missing,
               std::vector<ChunkRead> &reads) {
    for (std::uint64_t i = 0; i < file.table().count() && !missing.empty(); ++i) {
        if (!file.stored(i)) continue;
        ckpt::ChunkInfo there = file.table().chunk(i);
        auto [first, last] = missing.equal_range(ckpt::hash_of_piece(there));
        while (first != last) {
            Missing &wanted = first->second;
            ChunkRead read{rank, i, wanted.to};
            bool same = ckpt::same_piece(wanted.chunk, there);
            if (same && wanted.checksum == there.checksum) {
                reads.push_back(read);
                first = missing.erase(first);
                continue;
            }
            if (same) take_piece(wanted, there, read);
            ++first;
        }
    }
}

/// Finds who has the replicas' bytes, lowest rank first.
Status find_missing(StoredFiles &files, std::uint32_t rank, MissingChunks missing,
                    std::vector<ChunkRead> &reads) {
    for (std::uint32_t other = 0; other < files.ranks() && !missing.empty(); ++other) {
        if (other == rank) continue;
        auto file = files.rank(other);
        if (!file) return file.take_status();
        take_from(**file, other, missing, reads);
        files.release();
    }
    for (const auto &[hash, left] : missing) {
        if (!left.instead || left.contradiction)
            return damaged(left.chunk, rank, " is a replica, and no rank's file has its bytes");
        reads.push_back(*left.instead);
    }
    return {};
}

Status miss(Checksums &checksums, const ckpt::ChunkInfo &chunk, std::byte *to, MissingChunks &missing) {
    auto checksum = checksums.of(chunk);
    if (!checksum) return checksum.take_status();
    missing.emplace(ckpt::hash_of_piece(chunk), Missing{chunk, *checksum, to, {}, 0, false});
    return {};
}

/// Names point into the table.
Status plan_reads(StoredFiles &files, std::uint32_t rank, const ckpt::StorageFile &own, std::byte *base,
                  std::span<const std::uint64_t> offsets, std::vector<ChunkRead> &reads) {
    MissingChunks missing;
    Checksums checksums(files, rank);
    for (std::uint64_t i = 0; i < own.table().count(); ++i) {
        ckpt::ChunkInfo chunk = own.table().chunk(i);
        if (own.stored(i))
            reads.push_back({rank, i, base + offsets[i]});
        else if (chunk.bytes != 0)
            DLROVER_TRY(miss(checksums, chunk, base + offsets[i], missing));
    }
    return find_missing(files, rank, std::move(missing), reads);
}

}  // namespace

Result<StoredObject> read_stored_object(StoredFiles &files, std::uint32_t rank, unsigned threads) {
    auto own = files.rank(rank);
    if (!own) return own.take_status();
    const ckpt::StorageFile &file = **own;
    auto offsets = lay_out(file.table());
    if (!offsets) return offsets.take_status();
    auto object = make_room(file.table_bytes(), offsets->back(), files.manifest().id.step, file.ledger());
    if (!object) return object;
    std::byte *base = object->memory.base();
    for (std::uint64_t i = 0; i < file.table().count(); ++i) object->places.push_back(base + (*offsets)[i]);
    std::vector<ChunkRead> reads;
    DLROVER_TRY(plan_reads(files, rank, file, base, *offsets, reads));
    DLROVER_TRY(read_chunks(files, reads, threads));
    DLROVER_TRY(make_read_only(*object));
    return object;
}

Status read_stored_chunk(StoredFiles &files, std::uint32_t rank, std::uint64_t index, std::byte *out,
                         unsigned threads) {
    auto own = files.rank(rank);
    if (!own) return own.take_status();
    const ckpt::StorageFile &file = **own;
    std::vector<ChunkRead> reads;
    ckpt::ChunkInfo chunk = file.table().chunk(index);
    if (file.stored(index)) {
        reads.push_back({rank, index, out});
    } else if (chunk.bytes != 0) {
        MissingChunks missing;
        Checksums checksums(files, rank);
        DLROVER_TRY(miss(checksums, chunk, out, missing));
        DLROVER_TRY(find_missing(files, rank, std::move(missing), reads));
    }
    return read_chunks(files, reads, threads);
}

Result<StoredObject> empty_object(ckpt::ObjectIdentity who, std::string_view skeleton,
                                  std::span<const std::uint8_t> ledger) {
    TrainStep step = who.train_step;
    ckpt::ObjectTableWriter writer(std::move(who));
    DLROVER_TRY(writer.set_skeleton(skeleton));
    auto table = writer.finish();
    if (!table) return table.take_status();
    auto object = make_room(*table, 0, step, ledger);
    if (object.ok()) DLROVER_TRY(make_read_only(*object));
    return object;
}

Result<StoredObject> empty_stored_object(StoredFiles &files, std::uint32_t rank, std::uint32_t world_size) {
    auto like = files.rank(files.ranks() == world_size ? rank : 0);
    if (!like) return like.take_status();
    ckpt::ObjectIdentity who = (*like)->identity();
    who.rank = Rank(rank);
    who.world_size = world_size;
    who.train_step = files.manifest().id.step;
    return empty_object(std::move(who), (*like)->table().skeleton(), (*like)->ledger());
}

}  // namespace dlrover::lib
