// SPDX-License-Identifier: Apache-2.0
#include "ckpt/object_table.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "ckpt/block_kernel.h"
#include "ckpt/checksum.h"
#include "ckpt/format_version.h"

namespace dlrover::ckpt {
namespace {

constexpr std::uint16_t table_version = 1;
constexpr std::uint64_t fixed_table_bytes = 4096;  // root, vtables, header
constexpr std::uint64_t fixed_chunk_bytes = 160;   // table, vtable, offsets, padding

Status wrong(const ChunkInfo &chunk, const char *what) {
    std::string name(chunk.name.substr(0, 200));
    return Status(Code::invalid_argument, "chunk \"" + name + "\": " + what);
}

std::optional<std::uint64_t> product(std::span<const std::uint64_t> shape, std::uint64_t unit) {
    std::uint64_t result = unit;
    if (std::find(shape.begin(), shape.end(), 0u) != shape.end()) return 0;
    for (std::uint64_t n : shape)
        if (__builtin_mul_overflow(result, n, &result)) return std::nullopt;
    return result;
}

bool inside(std::uint64_t offset, std::uint64_t length, std::uint64_t whole) {
    return length <= whole && offset <= whole - length;
}

std::span<const std::uint64_t> to_span(const flatbuffers::Vector<std::uint64_t> *vector) {
    static_assert(FLATBUFFERS_LITTLEENDIAN, "the format is little-endian");
    if (vector == nullptr) return {};
    return {reinterpret_cast<const std::uint64_t *>(vector->Data()), vector->size()};
}

std::string_view to_view(const flatbuffers::String *text) {
    return text == nullptr ? std::string_view{} : std::string_view(text->c_str(), text->size());
}

constexpr std::uint32_t no_keeper = UINT32_MAX;

std::optional<Rank> to_keeper(std::uint32_t rank) {
    return rank == no_keeper ? std::nullopt : std::optional(Rank(rank));
}

ChunkInfo to_info(const format::Chunk &chunk) {
    return {to_view(chunk.name()),
            chunk.dtype(),
            to_span(chunk.global_shape()),
            to_span(chunk.global_offset()),
            to_span(chunk.local_shape()),
            chunk.replica(),
            chunk.offset(),
            chunk.bytes(),
            chunk.xxh3(),
            to_keeper(chunk.keeper()),
            to_span(chunk.blocks())};
}

Status check_limits(const format::ObjectTable &table) {
    if (table.version() != table_version)
        return other_version("an object table", table.version(), table_version);
    if (table.chunks() == nullptr) return {};
    if (table.chunks()->size() > max_chunks)
        return Status(Code::corrupt, "too many chunks in an object table");
    return {};
}

/// The FlatBuffers verifier looks at the alignment of a vector's length only.
bool aligned(const flatbuffers::Vector<std::uint64_t> *vector) {
    return vector == nullptr ||
           reinterpret_cast<std::uintptr_t>(vector->Data()) % alignof(std::uint64_t) == 0;
}

Status check_keeper(const ChunkInfo &chunk, const format::ObjectTable &table) {
    if (!chunk.keeper ||
        (chunk.keeper->value() != table.rank() && chunk.keeper->value() < table.world_size()))
        return {};
    return Status(Code::corrupt, wrong(chunk, "its keeper is no other rank of the world").message());
}

Status check_chunks(const format::ObjectTable &table, std::uint64_t data_bytes) {
    if (table.chunks() == nullptr) return {};
    for (const format::Chunk *entry : *table.chunks()) {
        if (!aligned(entry->global_shape()) || !aligned(entry->global_offset()) ||
            !aligned(entry->local_shape()) || !aligned(entry->blocks()))
            return Status(Code::corrupt, "a list in the object table is not aligned");
        ChunkInfo chunk = to_info(*entry);
        if (Status s = check_chunk(chunk); !s.ok()) return Status(Code::corrupt, s.message());
        DLROVER_TRY(check_keeper(chunk, table));
        if (!chunk.keeper && !inside(chunk.offset, chunk.bytes, data_bytes))
            return Status(Code::corrupt, wrong(chunk, "lies outside the object").message());
    }
    return {};
}

/// How many blocks have a hash of their own in the table.
std::uint64_t blocks_told(const ChunkInfo &chunk) {
    std::uint64_t count = chunk.keeper ? 0 : checksum_blocks(chunk.bytes);
    return count > 1 ? count : 0;
}

bool blocks_go_with_checksum(const ChunkInfo &chunk) {
    return chunk.blocks.empty() || (chunk.blocks.size() == blocks_told(chunk) &&
                                    combine_block_hashes(chunk.blocks) == chunk.checksum);
}

bool before(const ChunkInfo &a, const ChunkInfo &b) {
    if (int order = a.name.compare(b.name); order != 0) return order < 0;
    return std::lexicographical_compare(a.global_offset.begin(), a.global_offset.end(),
                                        b.global_offset.begin(), b.global_offset.end());
}

std::uint64_t hash_of(const ChunkInfo &chunk) {
    const BlockKernel &kernel = block_kernel();
    std::uint64_t name = kernel.hash(chunk.name.data(), chunk.name.size());
    return name ^ std::rotl(kernel.hash(chunk.global_offset.data(), chunk.global_offset.size_bytes()), 1);
}

/// In order of a hash, so that names, which have long beginnings in common, are compared only where two are
/// likely to be equal.
Status check_unique(const format::ObjectTable &table) {
    if (table.chunks() == nullptr) return {};
    struct Key {
        std::uint64_t hash;
        std::uint32_t index;
    };
    std::vector<Key> keys;
    keys.reserve(table.chunks()->size());
    auto info = [&](std::uint32_t i) { return to_info(*table.chunks()->Get(i)); };
    for (std::uint32_t i = 0; i < table.chunks()->size(); ++i) keys.push_back({hash_of(info(i)), i});
    auto comes_before = [&](const Key &a, const Key &b) {
        return a.hash != b.hash ? a.hash < b.hash : before(info(a.index), info(b.index));
    };
    std::sort(keys.begin(), keys.end(), comes_before);
    for (std::size_t i = 1; i < keys.size(); ++i)
        if (!comes_before(keys[i - 1], keys[i]))
            return Status(Code::corrupt, wrong(info(keys[i].index), "is there twice").message());
    return {};
}

}  // namespace

Result<std::span<const std::uint8_t>> find_object_table(std::span<const std::byte> memory,
                                                        const ObjectPlace &place) {
    if (place.data_bytes > memory.size() || !inside(place.table_offset, place.table_bytes, memory.size()))
        return Status(Code::corrupt, "the object reaches outside its memory");
    if (place.table_bytes > max_table_bytes) return Status(Code::corrupt, "the object table is too large");
    auto *bytes = reinterpret_cast<const std::uint8_t *>(memory.data() + place.table_offset);
    if (block_kernel().hash(bytes, place.table_bytes) != place.table_xxh3)
        return Status(Code::corrupt, "the object table's checksum is wrong");
    return std::span(bytes, place.table_bytes);
}

std::optional<std::uint64_t> align_object_offset(std::uint64_t offset) noexcept {
    std::uint64_t raised;
    if (__builtin_add_overflow(offset, object_alignment_bytes - 1, &raised)) return std::nullopt;
    return raised & ~(object_alignment_bytes - 1);
}

std::optional<std::uint64_t> shape_bytes(std::span<const std::uint64_t> shape, DType dtype) {
    return product(shape, element_bytes(dtype));
}

Status check_chunk(const ChunkInfo &chunk) {
    if (chunk.name.empty() || chunk.name.size() > max_name_bytes)
        return wrong(chunk, "the name is empty or longer than 4096 bytes");
    std::uint32_t unit = element_bytes(chunk.dtype);
    if (unit == 0) return wrong(chunk, "unknown element type");
    std::size_t dims = chunk.local_shape.size();
    if (dims > max_dims) return wrong(chunk, "more than 16 dimensions");
    if (chunk.global_shape.size() != dims || chunk.global_offset.size() != dims)
        return wrong(chunk, "shapes and offset differ in length");
    for (std::size_t i = 0; i < dims; ++i)
        if (!inside(chunk.global_offset[i], chunk.local_shape[i], chunk.global_shape[i]))
            return wrong(chunk, "reaches outside its global shape");
    auto bytes = product(chunk.local_shape, unit);
    if (!bytes || *bytes != chunk.bytes) return wrong(chunk, "the number of bytes does not fit its shape");
    if (chunk.offset % object_alignment_bytes != 0) return wrong(chunk, "is not aligned");
    bool elsewhere = chunk.replica != 0 && chunk.offset == 0 && chunk.checksum == 0 && chunk.bytes != 0;
    if (chunk.keeper && !elsewhere)
        return wrong(chunk, "another rank keeps it: it has bytes, but no place and no checksum here");
    if (!blocks_go_with_checksum(chunk))
        return wrong(chunk, "the hashes of its blocks do not make its checksum");
    return {};
}

std::uint64_t hash_of_piece(const ChunkInfo &chunk) {
    const BlockKernel &kernel = block_kernel();
    auto hash = [&](std::span<const std::uint64_t> v) { return kernel.hash(v.data(), v.size_bytes()); };
    const std::uint64_t parts[] = {kernel.hash(chunk.name.data(), chunk.name.size()),
                                   static_cast<std::uint64_t>(chunk.dtype), hash(chunk.global_shape),
                                   hash(chunk.global_offset), hash(chunk.local_shape)};
    return kernel.hash(parts, sizeof parts);
}

bool same_piece(const ChunkInfo &a, const ChunkInfo &b) {
    return a.name == b.name && a.dtype == b.dtype && std::ranges::equal(a.global_shape, b.global_shape) &&
           std::ranges::equal(a.global_offset, b.global_offset) &&
           std::ranges::equal(a.local_shape, b.local_shape);
}

Status check_identity(const ObjectIdentity &wanted, const ObjectIdentity &found) {
    std::string wrong;
    if (found.lineage != wanted.lineage) wrong = "of the lineage \"" + found.lineage.substr(0, 200) + "\"";
    if (found.world_size != wanted.world_size)
        wrong = "of a world of " + std::to_string(found.world_size) + " ranks";
    if (found.generation != wanted.generation) wrong = "of generation " + to_string(found.generation);
    if (found.train_step != wanted.train_step) wrong = "of step " + std::to_string(found.train_step.value());
    if (found.rank != wanted.rank) wrong = "of rank " + std::to_string(found.rank.value());
    if (wrong.empty()) return {};
    return Status(Code::corrupt, "it is " + wrong);
}

namespace {

/// Keeps one block that is free: a training makes tables of one size again and again, and whether malloc()
/// gives new pages each time depends on what else the program has freed. Any thread.
class TableMemory : public flatbuffers::Allocator {
  public:
    /// What allocate() can give for so many without new pages: a table grows after its chunks are known.
    std::size_t fitting(std::size_t bytes) {
        std::lock_guard lock(mutex_);
        return fits(bytes) ? spare_.size() : bytes;
    }
    std::uint8_t *allocate(std::size_t bytes) override {
        std::lock_guard lock(mutex_);
        if (!fits(bytes)) spare_ = Block(bytes);
        lent_.push_back(std::exchange(spare_, {}));
        return lent_.back().begin();
    }
    void deallocate(std::uint8_t *memory, std::size_t) override {
        std::lock_guard lock(mutex_);
        auto found = std::find_if(lent_.begin(), lent_.end(),
                                  [memory](const Block &block) { return block.begin() == memory; });
        if (found->size() <= most_kept) spare_ = std::move(*found);
        lent_.erase(found);
    }

  private:
    class Block {
      public:
        Block() = default;
        explicit Block(std::size_t bytes) : memory_(new std::uint8_t[bytes]), bytes_(bytes) {}
        std::uint8_t *begin() const noexcept { return memory_.get(); }
        std::size_t size() const noexcept { return memory_ ? bytes_ : 0; }

      private:
        std::unique_ptr<std::uint8_t[]> memory_;
        std::size_t bytes_ = 0;
    };
    static constexpr std::size_t most_kept = 16 << 20;
    bool fits(std::size_t bytes) const { return bytes <= spare_.size() && spare_.size() / 4 <= bytes; }

    std::mutex mutex_;
    Block spare_;
    std::vector<Block> lent_;
};

TableMemory &table_memory() {
    static auto &memory = *new TableMemory;  // for writers that outlive main()
    return memory;
}

}  // namespace

ObjectTableWriter::ObjectTableWriter(ObjectIdentity identity)
    : identity_(std::move(identity)), bytes_bound_(fixed_table_bytes + identity_.lineage.size()) {
    builder_.ForceDefaults(true);  // a checksum that is set later needs its place
}

std::uint64_t ObjectTableWriter::bytes_for(const ChunkInfo &chunk) noexcept {
    return fixed_chunk_bytes + chunk.name.size() + 24 * chunk.local_shape.size() + 8 * blocks_told(chunk);
}

// Growing step by step it would be copied each time, into pages that are new each time.
void ObjectTableWriter::reserve(std::uint64_t bytes) {
    if (!chunks_.empty()) return;
    std::uint64_t wanted = bytes_bound_ + std::min<std::uint64_t>(bytes, max_table_bytes);
    builder_ = flatbuffers::FlatBufferBuilder(table_memory().fitting(wanted), &table_memory());
    builder_.ForceDefaults(true);
}

Status ObjectTableWriter::add(const ChunkInfo &chunk) {
    return add_entry(chunk, chunk.blocks.size());
}

Status ObjectTableWriter::add_unhashed(const ChunkInfo &chunk) {
    return add_entry(chunk, blocks_told(chunk));
}

/// With room for the hashes of so many blocks, unless the table would be too large by them.
Status ObjectTableWriter::add_entry(const ChunkInfo &chunk, std::uint64_t blocks) {
    DLROVER_TRY(check_chunk(chunk));
    std::uint64_t cost = bytes_for(chunk);
    if (bytes_bound_ + cost > max_table_bytes) {
        cost -= 8 * blocks_told(chunk);
        blocks = 0;
    }
    if (chunks_.size() >= max_chunks) return Status(Code::resource_exhausted, "more than 4194304 chunks");
    if (bytes_bound_ + cost > max_table_bytes)
        return Status(Code::resource_exhausted, "the object table would be larger than 1 GiB");
    auto vector = [&](std::span<const std::uint64_t> v) {
        return v.empty() ? flatbuffers::Offset<flatbuffers::Vector<std::uint64_t>>()
                         : builder_.CreateVector(v.data(), v.size());
    };
    auto name = builder_.CreateString(chunk.name.data(), chunk.name.size());
    auto global_shape = vector(chunk.global_shape), global_offset = vector(chunk.global_offset),
         local_shape = vector(chunk.local_shape);
    flatbuffers::Offset<flatbuffers::Vector<std::uint64_t>> hashes;
    if (blocks != 0) {
        std::uint64_t *to = nullptr;
        hashes = builder_.CreateUninitializedVector(blocks, &to);
        std::fill_n(to, blocks, 0);
        std::copy(chunk.blocks.begin(), chunk.blocks.end(), to);
    }
    chunks_.push_back(format::CreateChunk(
        builder_, name, chunk.dtype, global_shape, global_offset, local_shape, chunk.replica, chunk.offset,
        chunk.bytes, chunk.checksum, chunk.keeper ? chunk.keeper->value() : no_keeper, hashes));
    hashes_.push_back(hash_of(chunk));
    bytes_bound_ += cost;
    return {};
}

void ObjectTableWriter::set_hashes(std::uint64_t index, std::span<const std::uint64_t> hashes) {
    auto *entry = reinterpret_cast<flatbuffers::Table *>(builder_.GetCurrentBufferPointer() +
                                                         builder_.GetSize() - chunks_[index].o);
    entry->SetField<std::uint64_t>(format::Chunk::VT_XXH3, combine_block_hashes(hashes), 0);
    auto *blocks = entry->GetPointer<flatbuffers::Vector<std::uint64_t> *>(format::Chunk::VT_BLOCKS);
    if (blocks != nullptr) std::memcpy(blocks->Data(), hashes.data(), hashes.size_bytes());
}

Status ObjectTableWriter::set_skeleton(std::string_view json) {
    if (json.size() > max_skeleton_bytes)
        return Status(Code::invalid_argument, "the skeleton is larger than 64 MiB");
    bytes_bound_ += json.size();
    skeleton_ = json;
    return {};
}

void ObjectTableWriter::sort_names() {
    std::sort(hashes_.begin(), hashes_.end());
}

Result<std::vector<std::uint8_t>> ObjectTableWriter::finish() {
    auto bytes = finish_in_place();
    if (!bytes) return bytes.take_status();
    return std::vector<std::uint8_t>(bytes->begin(), bytes->end());
}

Result<std::span<const std::uint8_t>> ObjectTableWriter::finish_in_place() {
    auto lineage = builder_.CreateString(identity_.lineage), skeleton = builder_.CreateString(skeleton_);
    auto chunks = builder_.CreateVector(chunks_);
    builder_.Finish(format::CreateObjectTable(builder_, table_version, identity_.train_step.value(),
                                              identity_.rank.value(), identity_.world_size,
                                              identity_.generation.term.value(), identity_.generation.number,
                                              lineage, skeleton, chunks),
                    format::ObjectTableIdentifier());
    if (!std::is_sorted(hashes_.begin(), hashes_.end())) sort_names();
    if (std::adjacent_find(hashes_.begin(), hashes_.end()) != hashes_.end())
        DLROVER_TRY(check_unique(*format::GetObjectTable(builder_.GetBufferPointer())));
    return std::span<const std::uint8_t>(builder_.GetBufferPointer(), builder_.GetSize());
}

Result<ObjectTableView> ObjectTableView::parse(std::span<const std::uint8_t> bytes,
                                               std::uint64_t data_bytes) {
    if (bytes.size() < 8 || bytes.size() > max_table_bytes)
        return Status(Code::corrupt, "object table of a wrong size");
    ObjectTableView view;
    const std::uint8_t *data = bytes.data();
    if (reinterpret_cast<std::uintptr_t>(data) % alignof(std::uint64_t) != 0) {
        view.aligned_copy_.resize((bytes.size() + 7) / 8);
        std::memcpy(view.aligned_copy_.data(), data, bytes.size());
        data = reinterpret_cast<const std::uint8_t *>(view.aligned_copy_.data());
    }
    constexpr auto max_tables = static_cast<flatbuffers::uoffset_t>(max_chunks + 1);
    flatbuffers::Verifier verifier(data, bytes.size(), 4, max_tables);
    if (!format::VerifyObjectTableBuffer(verifier))
        return Status(Code::corrupt, "the object table does not verify");
    view.table_ = format::GetObjectTable(data);
    DLROVER_TRY(check_limits(*view.table_));
    DLROVER_TRY(check_chunks(*view.table_, data_bytes));
    DLROVER_TRY(check_unique(*view.table_));
    return view;
}

ObjectIdentity ObjectTableView::identity() const {
    return {TrainStep(table_->train_step()), Rank(table_->rank()), table_->world_size(),
            GenerationId{Term(table_->generation_term()), table_->generation_number()},
            std::string(to_view(table_->lineage()))};
}

std::string_view ObjectTableView::skeleton() const {
    return to_view(table_->skeleton());
}

std::uint64_t ObjectTableView::count() const {
    return table_->chunks() == nullptr ? 0 : table_->chunks()->size();
}

ChunkInfo ObjectTableView::chunk(std::uint64_t index) const {
    return to_info(*table_->chunks()->Get(static_cast<flatbuffers::uoffset_t>(index)));
}

}  // namespace dlrover::ckpt
