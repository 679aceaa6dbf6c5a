// SPDX-License-Identifier: Apache-2.0
#include "ckpt/storage_image.h"

#include "ckpt/checksum.h"
#include "ckpt/hdf5_file.h"
#include "ckpt/storage_header.h"
#include "ckpt/storage_io.h"
#include "ckpt/storage_name.h"

namespace dlrover::ckpt {
namespace {

constexpr char image_name[] = "the file's frame in memory";

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

Result<std::uint64_t> add_chunk(Hdf5File &file, std::uint64_t index, const ChunkInfo &chunk) {
    if (chunk.replica != 0) return not_stored;
    std::string name = text_for_hdf5(chunk.name);
    const Hdf5Attribute attributes[] = {{"name", std::string_view(name)},
                                        {"dtype", std::string_view(dtype_name(chunk.dtype))},
                                        {"global_shape", chunk.global_shape},
                                        {"global_offset", chunk.global_offset}};
    auto place =
        file.add_dataset("/chunks/" + std::to_string(index), chunk.dtype, chunk.local_shape, attributes);
    if (place.ok() && chunk.bytes == 0) return std::uint64_t{0};
    return place;
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

Result<std::shared_ptr<const StorageFrame>> make_frame(const ObjectTableView &table) {
    auto file = Hdf5File::create(storage_block_bytes, table.count());
    if (!file) return file.take_status();
    auto frame = std::make_shared<StorageFrame>();
    frame->places.reserve(table.count());
    DLROVER_TRY(file->add_group("/chunks"));
    for (std::uint64_t i = 0; i < table.count(); ++i) {
        auto place = add_chunk(*file, i, table.chunk(i));
        if (!place) return place.take_status();
        frame->places.push_back(*place);
    }
    DLROVER_TRY(add_bytes(*file, "/places", DType::UInt64, table.count(), frame->list));
    DLROVER_TRY(add_bytes(*file, "/checksums", DType::UInt64, table.count(), frame->checksums));
    auto memory = file->finish();
    if (!memory) return memory.take_status();
    std::span places(frame->places);
    DLROVER_TRY(write_at(memory->get(), places.data(), places.size_bytes(), frame->list, image_name));
    auto packed = PackedMemory::pack(memory->get());
    if (!packed) return packed.take_status();
    frame->file = std::move(*packed);
    return std::shared_ptr<const StorageFrame>(std::move(frame));
}

Result<std::shared_ptr<const StorageFrame>> find_or_make_frame(const ObjectTableView &table,
                                                               StorageFrames &frames) {
    ObjectIdentity who = table.identity();
    frames.begin({who.generation, who.train_step});
    FrameKey key = frame_key(table);
    if (auto frame = frames.find(key)) return frame;
    auto frame = make_frame(table);
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

Result<std::uint64_t> hash_rest(int memory, const ObjectTableView &table, const StorageFrame &frame,
                                std::uint64_t file_bytes) {
    std::vector<Extent> extents;
    for (std::uint64_t i = 0; i < frame.places.size(); ++i)
        if (frame.places[i] != not_stored) extents.push_back({frame.places[i], table.chunk(i).bytes});
    auto gaps = gaps_between(extents, file_bytes);
    if (!gaps) return gaps.take_status();
    std::vector<std::uint64_t> hashes;
    for (const Extent &gap : *gaps)
        DLROVER_TRY(hash_range(memory, gap.offset, gap.bytes, image_name, hashes));
    if (hashes.empty()) return Status(Code::internal, "an HDF5 file without metadata");
    return combine_block_hashes(hashes);
}

StorageHeader make_header(const SealedObject &object, const ObjectTableView &table, const StorageFrame &frame,
                          const Places &places) {
    ObjectIdentity who = table.identity();
    StorageHeader header{};
    header.train_step = who.train_step.value();
    header.term = who.generation.term.value();
    header.generation_number = who.generation.number;
    header.rank = who.rank.value();
    header.world_size = who.world_size;
    header.chunk_count = table.count();
    header.places_offset = frame.list;
    header.places_xxh3 = block_kernel().hash(frame.places.data(), frame.places.size() * 8);
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
                                    std::shared_ptr<const StorageFrame> frame) {
    auto copy = frame->file.unpack();
    if (!copy) return copy.take_status();
    auto file = Hdf5File::open(std::move(*copy));
    if (!file) return file.take_status();
    auto places = add_own(*file, object, table);
    if (!places) return places.take_status();
    auto memory = file->finish();
    if (!memory) return memory.take_status();
    DLROVER_TRY(fill(memory->get(), object, table, *frame, *places));
    auto bytes = file_size(memory->get(), image_name);
    if (!bytes) return bytes.take_status();
    auto rest = hash_rest(memory->get(), table, *frame, *bytes);
    if (!rest) return rest.take_status();
    StorageHeader header = make_header(object, table, *frame, *places);
    header.file_bytes = *bytes;
    header.rest_xxh3 = *rest;
    auto block = encode_storage_header(header);
    DLROVER_TRY(write_at(memory->get(), block.data(), block.size(), 0, image_name));
    return StorageImage{std::move(*memory), *bytes, std::move(frame), storage_header_xxh3(block)};
}

}  // namespace

Result<StorageImage> make_storage_image(const SealedObject &object, const ObjectTableView &table,
                                        StorageFrames &frames) {
    auto frame = find_or_make_frame(table, frames);
    if (!frame) return frame.take_status();
    return complete_frame(object, table, std::move(*frame));
}

}  // namespace dlrover::ckpt
