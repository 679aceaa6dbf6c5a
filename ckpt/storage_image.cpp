// SPDX-License-Identifier: Apache-2.0
#include "ckpt/storage_image.h"

#include <algorithm>

#include "ckpt/checksum.h"
#include "ckpt/hdf5_file.h"
#include "ckpt/hdf5_group.h"
#include "ckpt/storage_header.h"
#include "ckpt/storage_io.h"
#include "ckpt/storage_name.h"

namespace dlrover::ckpt {
namespace {

constexpr char image_name[] = "the file's frame in memory";
constexpr std::uint64_t aligned_from_bytes = 65536, chunk_alignment = 4096;

constexpr std::uint64_t align(std::uint64_t offset) {
    return (offset + chunk_alignment - 1) / chunk_alignment * chunk_alignment;
}

/// Where HDF5 put what we fill in ourselves.
struct Places {
    std::uint64_t table = 0, ledger = 0, skeleton = 0;
};

std::string text_for_hdf5(std::string_view text) {
    bool fits = valid_utf8(text) && text.find('\0') == std::string_view::npos;
    return fits ? std::string(text) : escape_name(text);
}

Status describe_object(Hdf5File &file, const ObjectIdentity &who) {
    std::string lineage = text_for_hdf5(who.lineage);
    const Hdf5Attribute attributes[] = {{"format", std::string_view("dlrover-checkpoint")},
                                        {"version", std::uint64_t{1}},
                                        {"lineage", std::string_view(lineage)},
                                        {"train_step", who.train_step.value()},
                                        {"term", who.generation.term.value()},
                                        {"generation", who.generation.number},
                                        {"rank", std::uint64_t{who.rank.value()}},
                                        {"world_size", std::uint64_t{who.world_size}}};
    return file.add_attributes(attributes);
}

void add_chunk(Hdf5Group &group, std::uint64_t index, const ChunkInfo &chunk, std::uint64_t place) {
    std::string name = text_for_hdf5(chunk.name), number = std::to_string(index);
    const Hdf5Attribute attributes[] = {{"name", std::string_view(name)},
                                        {"dtype", std::string_view(dtype_name(chunk.dtype))},
                                        {"global_shape", chunk.global_shape},
                                        {"global_offset", chunk.global_offset}};
    group.add({number, chunk.dtype, chunk.local_shape, place, chunk.bytes, attributes});
}

Status add_bytes(Hdf5File &file, const char *path, DType type, std::uint64_t count, std::uint64_t &place) {
    auto offset = file.add_dataset(path, type, std::span(&count, 1), {});
    if (offset) place = *offset;
    return offset.take_status();
}

/// What the frame follows from: make_frame() may use nothing else.
FrameKey frame_key(const ObjectTableView &table) {
    FrameKey key;
    for (std::uint64_t i = 0; i < table.count(); ++i) {
        ChunkInfo chunk = table.chunk(i);
        key.add(chunk.name).add(static_cast<std::uint64_t>(chunk.dtype)).add(chunk.replica);
        key.add(chunk.global_shape).add(chunk.global_offset).add(chunk.local_shape);
    }
    return key;
}

/// HDF5 and what it adds itself: behind the chunks and what is made here of them.
Status add_chunks(Hdf5File &file, const ObjectTableView &table, const ChunkPlaces &places) {
    auto types = file.type_bytes();
    if (!types) return types.take_status();
    Hdf5Group group(places.end, storage_block_bytes, *types);
    for (std::uint64_t i = 0; i < table.count(); ++i)
        if (places.of[i] != not_stored) add_chunk(group, i, table.chunk(i), places.of[i]);
    group.finish();
    DLROVER_TRY(file.skip(places.begin, group.offset() + group.bytes().size()));
    return file.add_made_group("chunks", group);
}

Result<std::shared_ptr<const StorageFrame>> make_frame(const ObjectTableView &table,
                                                       const ChunkPlaces &places) {
    auto file = Hdf5File::create(storage_block_bytes, 0);
    if (!file) return file.take_status();
    auto frame = std::make_shared<StorageFrame>();
    DLROVER_TRY(add_chunks(*file, table, places));
    DLROVER_TRY(add_bytes(*file, "/places", DType::UInt64, table.count(), frame->list));
    DLROVER_TRY(add_bytes(*file, "/checksums", DType::UInt64, table.count(), frame->checksums));
    auto memory = file->finish();
    if (!memory) return memory.take_status();
    DLROVER_TRY(write_at(memory->get(), places.of.data(), places.of.size() * sizeof(std::uint64_t),
                         frame->list, image_name));
    auto packed = PackedMemory::pack(memory->get());
    if (!packed) return packed.take_status();
    frame->file = std::move(*packed);
    return std::shared_ptr<const StorageFrame>(std::move(frame));
}

Result<std::shared_ptr<const StorageFrame>> find_or_make_frame(const ObjectTableView &table,
                                                               const ChunkPlaces &places,
                                                               StorageFrames &frames) {
    ObjectIdentity who = table.identity();
    frames.begin({who.generation, who.train_step});
    FrameKey key = frame_key(table);
    if (auto frame = frames.find(key)) return frame;
    auto frame = make_frame(table, places);
    if (frame) frames.keep(std::move(key), *frame);
    return frame;
}

Result<Places> add_own(Hdf5File &file, const SealedObject &object, const ObjectTableView &table) {
    Places places;
    DLROVER_TRY(describe_object(file, table.identity()));
    DLROVER_TRY(add_bytes(file, "/object_table", DType::UInt8, object.table.size(), places.table));
    DLROVER_TRY(add_bytes(file, "/ledger", DType::UInt8, object.ledger.size(), places.ledger));
    if (table.skeleton().empty()) return places;
    auto skeleton = file.add_text("/skeleton", table.skeleton().size());
    if (!skeleton) return skeleton.take_status();
    places.skeleton = *skeleton;
    return places;
}

std::vector<std::uint64_t> checksums_of(const ObjectTableView &table) {
    std::vector<std::uint64_t> sums(table.count());
    for (std::uint64_t i = 0; i < sums.size(); ++i) sums[i] = table.chunk(i).checksum;
    return sums;
}

Status fill(int memory, const SealedObject &object, const ObjectTableView &table, const StorageFrame &frame,
            const Places &places) {
    const std::vector<std::uint64_t> sums = checksums_of(table);
    std::uint64_t bytes = std::span(sums).size_bytes();
    DLROVER_TRY(write_at(memory, sums.data(), bytes, frame.checksums, image_name));
    DLROVER_TRY(write_at(memory, object.table.data(), object.table.size(), places.table, image_name));
    DLROVER_TRY(write_at(memory, object.ledger.data(), object.ledger.size(), places.ledger, image_name));
    std::string_view text = table.skeleton();
    return write_at(memory, text.data(), text.size(), places.skeleton, image_name);
}

/// What lies between chunks are zeros, up to where what describes them begins.
Result<std::uint64_t> hash_rest(int memory, const ObjectTableView &table, const ChunkPlaces &places,
                                std::uint64_t file_bytes) {
    static const std::vector<std::byte> zeros(chunk_alignment);
    std::vector<Extent> extents;
    for (std::uint64_t i = 0; i < places.of.size(); ++i)
        if (places.of[i] != not_stored) extents.push_back({places.of[i], table.chunk(i).bytes});
    auto gaps = gaps_between(extents, file_bytes);
    if (!gaps) return gaps.take_status();
    std::vector<std::uint64_t> hashes;
    for (const Extent &gap : *gaps)
        if (gap.offset >= places.begin && gap.offset + gap.bytes < places.end && gap.bytes <= zeros.size())
            hashes.push_back(block_kernel().hash(zeros.data(), gap.bytes));
        else
            DLROVER_TRY(hash_range(memory, gap.offset, gap.bytes, image_name, hashes));
    if (hashes.empty()) return Status(Code::internal, "an HDF5 file without metadata");
    return combine_block_hashes(hashes);
}

StorageHeader make_header(const SealedObject &object, const ObjectTableView &table, const StorageFrame &frame,
                          const ChunkPlaces &chunks, const Places &places) {
    ObjectIdentity who = table.identity();
    StorageHeader header{};
    header.train_step = who.train_step.value();
    header.term = who.generation.term.value();
    header.generation_number = who.generation.number;
    header.rank = who.rank.value();
    header.world_size = who.world_size;
    header.chunk_count = table.count();
    header.places_offset = frame.list;
    header.places_xxh3 = block_kernel().hash(chunks.of.data(), chunks.of.size() * 8);
    header.table_offset = places.table;
    header.table_bytes = object.table.size();
    header.table_xxh3 = block_kernel().hash(object.table.data(), object.table.size());
    header.ledger_offset = places.ledger;
    header.ledger_bytes = object.ledger.size();
    header.ledger_xxh3 = block_kernel().hash(object.ledger.data(), object.ledger.size());
    return header;
}

/// The frame, and what is this step's own.
Result<StorageImage> complete_frame(const SealedObject &object, const ObjectTableView &table,
                                    const ChunkPlaces &chunks, const StorageFrame &frame) {
    auto copy = frame.file.unpack();
    if (!copy) return copy.take_status();
    auto file = Hdf5File::open(std::move(*copy));
    if (!file) return file.take_status();
    auto places = add_own(*file, object, table);
    if (!places) return places.take_status();
    auto memory = file->finish();
    if (!memory) return memory.take_status();
    DLROVER_TRY(fill(memory->get(), object, table, frame, *places));
    auto bytes = file_size(memory->get(), image_name);
    if (!bytes) return bytes.take_status();
    auto rest = hash_rest(memory->get(), table, chunks, *bytes);
    if (!rest) return rest.take_status();
    StorageHeader header = make_header(object, table, frame, chunks, *places);
    header.file_bytes = *bytes;
    header.rest_xxh3 = *rest;
    auto block = encode_storage_header(header);
    DLROVER_TRY(write_at(memory->get(), block.data(), block.size(), 0, image_name));
    return StorageImage{std::move(*memory), *bytes, storage_header_xxh3(block)};
}

}  // namespace

ChunkPlaces place_chunks(const ObjectTableView &table) {
    ChunkPlaces places;
    std::uint64_t at = places.begin;
    places.of.reserve(table.count());
    for (std::uint64_t i = 0; i < table.count(); ++i) {
        ChunkInfo chunk = table.chunk(i);
        if (chunk.replica != 0 || chunk.bytes == 0) {
            places.of.push_back(chunk.replica != 0 ? not_stored : 0);
            continue;
        }
        if (chunk.bytes >= aligned_from_bytes) at = align(at);
        places.of.push_back(at);
        at += chunk.bytes;
    }
    places.end = align(at);
    return places;
}

Result<StorageImage> make_storage_image(const SealedObject &object, const ObjectTableView &table,
                                        const ChunkPlaces &places, StorageFrames &frames) {
    auto frame = find_or_make_frame(table, places, frames);
    if (!frame) return frame.take_status();
    return complete_frame(object, table, places, **frame);
}

}  // namespace dlrover::ckpt
