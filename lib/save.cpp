// SPDX-License-Identifier: Apache-2.0
#include "lib/save.h"

#include <algorithm>
#include <cstring>

#include "base/fault.h"
#include "base/units.h"
#include "ckpt/checksum.h"
#include "lib/background_populate.h"
#include "lib/parallel.h"

namespace dlrover::lib {
namespace {

using ckpt::checksum_block_bytes;
constexpr std::uint64_t bytes_per_thread = std::uint64_t{2} << 20;  // starting a thread costs about as much

std::uint64_t block_bytes(const ChunkSource &chunk, std::uint64_t i) {
    return std::min<std::uint64_t>(checksum_block_bytes, chunk.info.bytes - i * checksum_block_bytes);
}

/// Those of full length first, so that blocks which are copied together end together.
std::vector<ckpt::BlockCopy> cut(std::span<const ChunkSource> chunks, std::byte *base) {
    std::vector<ckpt::BlockCopy> blocks, rests;
    rests.reserve(chunks.size());
    for (const auto &chunk : chunks)
        for (std::uint64_t i = 0; i < ckpt::checksum_blocks(chunk.info.bytes); ++i) {
            std::uint64_t at = i * checksum_block_bytes, bytes = block_bytes(chunk, i);
            (bytes == checksum_block_bytes ? blocks : rests)
                .push_back({base + chunk.info.offset + at, chunk.data + at, bytes});
        }
    blocks.insert(blocks.end(), rests.begin(), rests.end());
    return blocks;
}

/// Behind a chunk's end, up to where the next one may begin: then objects that are alike are alike in every
/// byte (docs/format-object.md). Behind a block that is not the chunk's last one there is nothing.
void clear_behind(const SaveTarget &target, const std::byte *block, std::uint64_t bytes) {
    auto end = static_cast<std::uint64_t>(block - target.base) + bytes;
    std::uint64_t next = std::min(ckpt::align_object_offset(end).value_or(end), target.capacity);
    if (next > end) std::memset(target.base + end, 0, next - end);
}

/// What a block costs besides its bytes, as bytes.
std::uint64_t weight(const ckpt::BlockCopy &block) {
    constexpr std::uint64_t least = 16384;
    return std::max<std::uint64_t>(block.bytes, least);
}

/// Where each call's blocks end: a multiple of blocks_at_once, and more of small ones, since what follows in
/// the same call is fetched while a block ends. Fewer where there are few, so that all threads have some.
std::vector<std::size_t> ends_of_calls(std::span<const ckpt::BlockCopy> blocks, unsigned threads) {
    constexpr std::uint64_t enough = ckpt::blocks_at_once * checksum_block_bytes, calls_per_thread = 8;
    std::uint64_t all = 0, in_call = 0;
    for (const auto &block : blocks) all += weight(block);
    std::uint64_t share = std::min(all / threads / calls_per_thread, enough);
    std::size_t together = std::clamp<std::size_t>(blocks.size() / threads, 1, ckpt::blocks_at_once);
    std::vector<std::size_t> ends;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
        in_call += weight(blocks[i]);
        bool last = i + 1 == blocks.size();
        // Seven eighths are enough: blocks a little below full length are as many in a call as full ones.
        if (!last && ((i + 1) % together != 0 || in_call < share / 8 * 7)) continue;
        ends.push_back(i + 1);
        in_call = 0;
    }
    return ends;
}

}  // namespace

ObjectWriter::ObjectWriter(SaveTarget target, ckpt::ObjectIdentity identity, unsigned threads)
    : target_(target), threads_(threads), rank_(identity.rank), table_(std::move(identity)) {
    if (target.fresh) fresh_.emplace(std::span(target.base, target.capacity));
}

Status ObjectWriter::too_small(std::uint64_t needed) const {
    return Status(Code::resource_exhausted, "the slot has " + format_size_bytes(target_.capacity) +
                                                ", the object needs at least " + format_size_bytes(needed) +
                                                ": give a larger bound when the save begins");
}

Status ObjectWriter::place(std::span<ChunkSource> chunks) {
    for (auto &chunk : chunks) {
        auto offset = ckpt::align_object_offset(end_);
        if (!offset) return Status(Code::invalid_argument, "the object is too large");
        chunk.info.offset = *offset;
        DLROVER_TRY(ckpt::check_chunk(chunk.info));
        if (*offset > target_.capacity || chunk.info.bytes > target_.capacity - *offset)
            return too_small(*offset + chunk.info.bytes);
        if (chunk.data == nullptr && chunk.info.bytes != 0)
            return Status(Code::invalid_argument, "a chunk without data");
        end_ = *offset + chunk.info.bytes;
        keep_promise(chunk.info);
    }
    return {};
}

Status ObjectWriter::add_kept(ckpt::ChunkInfo chunk) {
    chunk.replica = std::max(chunk.replica, 1u);
    DLROVER_TRY(table_.add(chunk));
    shared_.kept_by(chunk.keeper->value(), ckpt::hash_of_piece(chunk));
    return {};
}

void ObjectWriter::promise(const ckpt::ChunkInfo &chunk, std::span<const std::uint32_t> here) {
    std::uint64_t hash = ckpt::hash_of_piece(chunk);
    promised_.insert(hash);
    for (std::uint32_t rank : here)
        if (rank != rank_.value()) shared_.kept_for(rank, hash);
}

void ObjectWriter::keep_promise(const ckpt::ChunkInfo &chunk) {
    if (promised_.empty()) return;
    auto promised = promised_.find(ckpt::hash_of_piece(chunk));
    if (promised != promised_.end()) promised_.erase(promised);
}

Status ObjectWriter::add_shared(std::span<const ckpt::ChunkInfo> chunks,
                                std::span<const std::uint32_t> here) {
    if (broken_) return Status(Code::invalid_argument, "this save has failed already");
    broken_ = true;
    for (const auto &chunk : chunks) {
        if (chunk.keeper != rank_)
            DLROVER_TRY(add_kept(chunk));
        else
            promise(chunk, here);
    }
    broken_ = false;
    return {};
}

unsigned ObjectWriter::threads_for(std::uint64_t bytes) const {
    return static_cast<unsigned>(std::min<std::uint64_t>(threads_, 1 + bytes / bytes_per_thread));
}

/// What is written is what counts: it goes past the cache.
Cpus ObjectWriter::near_target(unsigned threads) const {
    return threads > 1 ? near_cpus().for_memory({target_.base, target_.capacity}) : Cpus{};
}

void ObjectWriter::copy(std::span<const ChunkSource> chunks, std::span<ckpt::BlockCopy> blocks,
                        const std::function<void()> &meanwhile) {
    std::uint64_t bytes = 0;
    for (const auto &chunk : chunks) bytes += chunk.info.bytes;
    unsigned threads = threads_for(bytes);
    std::vector<std::size_t> ends = ends_of_calls(blocks, threads);
    auto copy_some = [&](std::uint64_t i) {
        // Fresh memory from its end: who else makes its pages ready begins at the front.
        std::size_t call = fresh_ ? ends.size() - 1 - i : i, first = call == 0 ? 0 : ends[call - 1];
        auto some = blocks.subspan(first, ends[call] - first);
        for (const auto &block : some.first(fresh_ ? some.size() : 0))
            fresh_->touch(static_cast<const std::byte *>(block.to), block.bytes);
        ckpt::block_kernel().copy_hash(some.data(), some.size());
        for (const auto &block : some)
            clear_behind(target_, static_cast<const std::byte *>(block.to), block.bytes);
        for (std::size_t n = 0; n < some.size(); ++n) fault_point("mid_copy");
    };
    parallel_for(ends.size(), threads, copy_some, meanwhile, near_target(threads));
}

/// Of the entries of the table from `first` on; `blocks` as cut() made them, and copied.
void ObjectWriter::set_hashes(std::uint64_t first, std::span<const ChunkSource> chunks,
                              std::span<const ckpt::BlockCopy> blocks) {
    auto full = blocks.begin(),
         rest = std::ranges::find_if(blocks, [](auto &b) { return b.bytes != checksum_block_bytes; });
    std::vector<std::uint64_t> hashes;
    for (const auto &chunk : chunks) {
        hashes.clear();
        for (std::uint64_t i = 0; i < ckpt::checksum_blocks(chunk.info.bytes); ++i)
            hashes.push_back((block_bytes(chunk, i) == checksum_block_bytes ? full : rest)++->hash);
        table_.set_hashes(first++, hashes);
    }
}

Status ObjectWriter::add_to_table(std::span<const ChunkSource> chunks) {
    std::uint64_t bytes = 0;
    for (const auto &chunk : chunks) bytes += ckpt::ObjectTableWriter::bytes_for(chunk.info);
    table_.reserve(bytes);
    for (const auto &chunk : chunks) DLROVER_TRY(table_.add_unhashed(chunk.info));
    if (2 * chunks.size() >= table_.count()) table_.sort_names();  // not again and again for a few more
    return {};
}

Status ObjectWriter::add(std::span<ChunkSource> chunks) {
    if (broken_) return Status(Code::invalid_argument, "this save has failed already");
    broken_ = true;
    auto begun = std::chrono::steady_clock::now();
    DLROVER_TRY(place(chunks));
    std::uint64_t first = table_.count();
    Status added;
    std::vector<ckpt::BlockCopy> blocks = cut(chunks, target_.base);
    copy(chunks, blocks, [&] { added = add_to_table(chunks); });
    DLROVER_TRY(std::move(added));
    set_hashes(first, chunks, blocks);
    copy_time_ += std::chrono::steady_clock::now() - begun;
    broken_ = false;
    return {};
}

Status ObjectWriter::add_cuda(std::span<ChunkSource> chunks, CudaStage &stage, void *stream) {
    if (broken_) return Status(Code::invalid_argument, "this save has failed already");
    broken_ = true;
    auto begun = std::chrono::steady_clock::now();
    DLROVER_TRY(place(chunks));
    std::vector<CudaCopy> copies;
    for (const auto &chunk : chunks) {
        staged_.push_back({table_.count(), chunk.info.offset, chunk.info.bytes});
        DLROVER_TRY(table_.add_unhashed(chunk.info));
        if (chunk.info.bytes == 0) continue;
        auto from = reinterpret_cast<cuda::Pointer>(chunk.data);
        copies.push_back({target_.base + chunk.info.offset, from, chunk.info.bytes});
    }
    stage_ = &stage;
    if (fresh_) populate_now({target_.base, target_.capacity}, threads_);  // it is registered as a whole
    fresh_.reset();
    DLROVER_TRY(stage.copy(copies, stream, target_));
    copy_time_ += std::chrono::steady_clock::now() - begun;
    broken_ = false;
    return {};
}

void ObjectWriter::checksum_staged() {
    std::vector<std::pair<const std::byte *, std::size_t>> blocks;
    std::uint64_t bytes = 0;
    for (const Staged &s : staged_) {
        for (std::uint64_t i = 0; i < ckpt::checksum_blocks(s.bytes); ++i) {
            std::uint64_t at = i * checksum_block_bytes;
            blocks.emplace_back(target_.base + s.offset + at,
                                std::min<std::uint64_t>(checksum_block_bytes, s.bytes - at));
        }
        bytes += s.bytes;
    }
    std::vector<std::uint64_t> hashes(blocks.size());
    auto hash_one = [&](std::uint64_t i) {
        hashes[i] = ckpt::block_kernel().hash(blocks[i].first, blocks[i].second);
        clear_behind(target_, blocks[i].first, blocks[i].second);
        fault_point("mid_checksum");
    };
    unsigned threads = threads_for(bytes);
    parallel_for(
        blocks.size(), threads, hash_one, [] {}, near_target(threads));
    std::size_t next = 0;
    for (const Staged &s : staged_) {
        std::size_t count = ckpt::checksum_blocks(s.bytes);
        table_.set_hashes(s.index, std::span(hashes).subspan(next, count));
        next += count;
    }
}

Status ObjectWriter::settle() {
    if (broken_) return Status(Code::invalid_argument, "this save has failed already");
    if (staged_.empty()) return {};
    broken_ = true;
    auto begun = std::chrono::steady_clock::now();
    DLROVER_TRY(stage_->wait());
    checksum_staged();
    staged_.clear();
    copy_time_ += std::chrono::steady_clock::now() - begun;
    broken_ = false;
    return {};
}

Status ObjectWriter::set_ledger(std::span<const std::uint8_t> bytes) {
    if (bytes.size() > ckpt::max_ledger_bytes)
        return Status(Code::invalid_argument, "the ledger is larger than 64 KiB");
    ledger_.assign(bytes.begin(), bytes.end());
    return {};
}

Result<ObjectLayout> ObjectWriter::finish() {
    DLROVER_TRY(settle());
    if (!promised_.empty())
        return Status(Code::invalid_argument, "chunks that this rank keeps for others were not added: " +
                                                  std::to_string(promised_.size()));
    auto table = table_.finish_in_place();
    if (!table) return table.take_status();
    auto offset = ckpt::align_object_offset(end_);
    if (!offset) return Status(Code::invalid_argument, "the object is too large");
    if (*offset > target_.capacity || table->size() > target_.capacity - *offset)
        return too_small(*offset + table->size());
    if (fresh_) fresh_->touch(target_.base + *offset, table->size());
    std::memcpy(target_.base + *offset, table->data(), table->size());
    std::uint64_t hash = ckpt::block_kernel().hash(table->data(), table->size());
    return ObjectLayout{target_.train_step, end_,  *offset,       table->size(), hash,
                        std::move(ledger_), false, shared_.list()};
}

}  // namespace dlrover::lib
