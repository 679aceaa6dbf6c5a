// SPDX-License-Identifier: Apache-2.0
#include "lib/protect.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <unordered_map>

#include "ckpt/checksum.h"
#include "lib/parallel.h"

namespace dlrover::lib {
namespace {

constexpr std::string_view own_prefix = "protected.";  // + id: memory of this rank alone
constexpr std::uint64_t table_bytes_per_chunk = 1024;  // besides the name
constexpr std::uint64_t copy_block_bytes = std::uint64_t{1} << 20;
constexpr std::uint64_t bytes_per_thread = std::uint64_t{2} << 20;  // starting a thread costs about as much
constexpr const char *nothing_restored = ": nothing was restored";

std::string own_name(int id) {
    return std::string(own_prefix) + std::to_string(id);
}

std::string id_text(int id) {
    return "id " + std::to_string(id);
}

/// A chunk is found again by its name and its place in the global array.
std::string key_of(std::string_view name, std::span<const std::uint64_t> offset) {
    std::string key(name);
    key.push_back('\0');
    key.append(reinterpret_cast<const char *>(offset.data()), offset.size_bytes());
    return key;
}

std::string numbers_text(std::span<const std::uint64_t> numbers) {
    std::string text;
    for (std::uint64_t n : numbers) text += (text.empty() ? "" : "x") + std::to_string(n);
    return text.empty() ? "1" : text;
}

/// "100 elements of Float64 (800 bytes)", "4x5 elements of ..."
std::string size_text(ckpt::DType dtype, std::span<const std::uint64_t> shape, std::uint64_t bytes) {
    return numbers_text(shape) + " elements of " + ckpt::format::EnumNameDType(dtype) + " (" +
           std::to_string(bytes) + " bytes)";
}

ckpt::ChunkInfo info_of(const ProtectedPiece &piece) {
    ckpt::ChunkInfo info;
    info.name = piece.name;
    info.dtype = piece.dtype;
    info.global_shape = piece.global_shape;
    info.global_offset = piece.global_offset;
    info.local_shape = piece.local_shape;
    info.bytes = piece.bytes;
    return info;
}

/// false: more than 2^64 - 1 bytes.
bool count_bytes(ProtectedPiece &piece) {
    piece.bytes = ckpt::element_bytes(piece.dtype);
    bool overflow = false;
    // An empty dimension makes it empty, whatever the others are.
    if (std::find(piece.local_shape.begin(), piece.local_shape.end(), 0u) != piece.local_shape.end())
        piece.bytes = 0;
    else
        for (std::uint64_t n : piece.local_shape)
            overflow |= __builtin_mul_overflow(piece.bytes, n, &piece.bytes);
    return !overflow;
}

using SavedChunks = std::unordered_map<std::string, std::uint64_t>;

SavedChunks index_of(const ObjectReader &saved) {
    SavedChunks chunks;
    for (std::uint64_t i = 0; i < saved.count(); ++i) {
        ckpt::ChunkInfo info = saved.chunk(i);
        chunks.emplace(key_of(info.name, info.global_offset), i);
    }
    return chunks;
}

/// Finds saved chunks. A program asks for them in the order in which it has saved them: the next one is
/// looked at first, and an index is made only where that is not so.
class SavedOrder {
  public:
    explicit SavedOrder(const ObjectReader &saved) : saved_(saved) {}
    std::optional<std::uint64_t> find(const ProtectedPiece &piece) {
        if (next_ < saved_.count() && is_piece(saved_.chunk(next_), piece)) return next_++;
        if (!index_) index_ = index_of(saved_);
        auto found = index_->find(key_of(piece.name, piece.global_offset));
        if (found == index_->end()) return std::nullopt;
        next_ = found->second + 1;
        return found->second;
    }

  private:
    static bool is_piece(const ckpt::ChunkInfo &info, const ProtectedPiece &piece) {
        return info.name == piece.name && std::ranges::equal(info.global_offset, piece.global_offset);
    }

    const ObjectReader &saved_;
    std::uint64_t next_ = 0;
    std::optional<SavedChunks> index_;
};

std::string step_text(const ObjectReader &saved) {
    return "the checkpoint of step " + std::to_string(saved.train_step().value());
}

Status check_same(int id, const ProtectedPiece &piece, const ckpt::ChunkInfo &info,
                  const ObjectReader &saved) {
    bool same = piece.dtype == info.dtype && std::ranges::equal(piece.local_shape, info.local_shape);
    if (!same)
        return Status(Code::invalid_argument,
                      id_text(id) + ": protected are " +
                          size_text(piece.dtype, piece.local_shape, piece.bytes) + ", " + step_text(saved) +
                          " has " + size_text(info.dtype, info.local_shape, info.bytes) + nothing_restored);
    if (!std::ranges::equal(piece.global_shape, info.global_shape))
        return Status(Code::invalid_argument, id_text(id) + ": array \"" + piece.name +
                                                  "\" is protected as " + numbers_text(piece.global_shape) +
                                                  ", " + step_text(saved) + " has it as " +
                                                  numbers_text(info.global_shape) + nothing_restored);
    return {};
}

struct Block {
    std::byte *to;
    const std::byte *from;
    std::uint64_t bytes;
};

void add_blocks(std::byte *to, const std::byte *from, std::uint64_t bytes, std::vector<Block> &blocks) {
    for (std::uint64_t at = 0; at < bytes; at += copy_block_bytes)
        blocks.push_back({to + at, from + at, std::min(copy_block_bytes, bytes - at)});
}

}  // namespace

bool ProtectedMemory::is_own(const ProtectedPiece &piece) {
    return piece.name.starts_with(own_prefix);
}

Status ProtectedMemory::protect(int id, void *data, std::uint64_t count, std::uint32_t dtype) {
    auto type = ckpt::to_dtype(dtype);
    if (!type) return Status(Code::invalid_argument, id_text(id) + ": unknown element type");
    return put(id, {own_name(id), *type, {count}, {0}, {count}, static_cast<std::byte *>(data), 0});
}

Status ProtectedMemory::protect_array(int id, ProtectedPiece piece) {
    if (piece.name.starts_with(own_prefix))
        return Status(Code::invalid_argument, id_text(id) + ": names that begin with \"" +
                                                  std::string(own_prefix) + "\" are dlrover_protect()'s");
    return put(id, std::move(piece));
}

Status ProtectedMemory::put(int id, ProtectedPiece piece) {
    if (!count_bytes(piece)) return Status(Code::invalid_argument, id_text(id) + ": more than 2^64 bytes");
    if (Status s = ckpt::check_chunk(info_of(piece)); !s.ok()) return std::move(s).with_context(id_text(id));
    if (piece.data == nullptr && piece.bytes != 0)
        return Status(Code::invalid_argument,
                      id_text(id) + ": the pointer is NULL; only 0 elements need no memory");
    pieces_.insert_or_assign(id, std::move(piece));
    distinct_ = false;
    return {};
}

Status ProtectedMemory::unprotect(int id) {
    if (pieces_.erase(id) == 0) return Status(Code::not_found, id_text(id) + " is not protected");
    return {};
}

std::uint64_t ProtectedMemory::save_bound() const {
    std::uint64_t bound = 0;
    for (const auto &[id, piece] : pieces_) {
        std::uint64_t more = table_bytes_per_chunk + piece.name.size();
        if (__builtin_add_overflow(more, piece.bytes, &more) || __builtin_add_overflow(bound, more, &bound))
            return UINT64_MAX;
    }
    return bound;
}

Status ProtectedMemory::check_distinct() const {
    if (distinct_) return {};
    std::unordered_map<std::string, int> taken;
    for (const auto &[id, piece] : pieces_) {
        auto [other, fresh] = taken.emplace(key_of(piece.name, piece.global_offset), id);
        if (!fresh)
            return Status(Code::invalid_argument, id_text(other->second) + " and " + id_text(id) +
                                                      " are the same piece of array \"" + piece.name + "\"");
    }
    distinct_ = true;
    return {};
}

Status ProtectedMemory::check_pieces() const {
    if (pieces_.empty())
        return Status(Code::invalid_argument,
                      "nothing is protected: call dlrover_protect first (0 elements will do)");
    return check_distinct();
}

Result<std::vector<ChunkSource>> ProtectedMemory::sources() const {
    DLROVER_TRY(check_pieces());
    std::vector<ChunkSource> sources;
    sources.reserve(pieces_.size());
    for (const auto &[id, piece] : pieces_) sources.push_back({info_of(piece), piece.data});
    return sources;
}

Result<std::uint64_t> ProtectedMemory::saved_count(const ObjectReader &saved, int id) const {
    std::string key = key_of(own_name(id), std::array<std::uint64_t, 1>{0});
    if (auto piece = pieces_.find(id); piece != pieces_.end())
        key = key_of(piece->second.name, piece->second.global_offset);
    SavedChunks chunks = index_of(saved);
    auto found = chunks.find(key);
    if (found == chunks.end()) return Status(Code::not_found, id_text(id) + " is not in " + step_text(saved));
    ckpt::ChunkInfo info = saved.chunk(found->second);
    return info.bytes / ckpt::element_bytes(info.dtype);
}

Status ProtectedMemory::fill(const ObjectReader &saved, unsigned threads) const {
    DLROVER_TRY(check_pieces());
    SavedOrder chunks(saved);
    std::vector<Block> blocks;
    blocks.reserve(pieces_.size());
    std::uint64_t bytes = 0;
    for (const auto &[id, piece] : pieces_) {
        auto found = chunks.find(piece);
        if (!found)
            return Status(Code::invalid_argument, id_text(id) + " is protected (" +
                                                      size_text(piece.dtype, piece.local_shape, piece.bytes) +
                                                      "), but not in " + step_text(saved) + nothing_restored);
        DLROVER_TRY(check_same(id, piece, saved.chunk(*found), saved));
        add_blocks(piece.data, saved.data(*found), piece.bytes, blocks);
        bytes += piece.bytes;
    }
    threads = static_cast<unsigned>(std::min<std::uint64_t>(threads, 1 + bytes / bytes_per_thread));
    const auto &kernel = ckpt::block_kernel();
    parallel_for(blocks.size(), threads,
                 [&](std::uint64_t i) { kernel.copy(blocks[i].to, blocks[i].from, blocks[i].bytes); });
    return {};
}

}  // namespace dlrover::lib
