// SPDX-License-Identifier: Apache-2.0
#include "ckpt/storage_index.h"

#include "ckpt/checksum.h"
#include "ckpt/hdf5_file.h"
#include "ckpt/index_plan.h"
#include "ckpt/storage_io.h"

namespace dlrover::ckpt {
namespace {

constexpr std::uint64_t max_index_bytes = std::uint64_t{1} << 32;

std::string chunk_path(std::uint64_t index) {
    return "/chunks/" + std::to_string(index);
}

Result<std::vector<StorageFile>> open_all(const std::string &folder, std::span<const RankFile> ranks) {
    std::vector<StorageFile> files;
    for (const RankFile &expected : ranks) {
        std::string path = folder + "/" + rank_file_name(expected.rank);
        auto file = StorageFile::open(path);
        if (!file) return file.take_status();
        if (file->summary() != expected || expected.rank.value() != files.size())
            return Status(Code::corrupt, path + " is not the file that its writer reported");
        file->close();
        files.push_back(std::move(*file));
    }
    return files;
}

/// A piece that is all of it is a link: reading it fails, should its file be gone one day.
Status add_tensor(Hdf5File &file, std::span<const StorageFile> files, const GlobalTensor &tensor) {
    std::string path = "/tensors/" + escape_name(tensor.name);
    const ChunkRef &first = tensor.pieces.front();
    ChunkInfo chunk = files[first.rank.value()].table().chunk(first.index);
    bool whole = std::equal(chunk.local_shape.begin(), chunk.local_shape.end(), tensor.shape.begin());
    if (tensor.pieces.size() == 1 && whole)
        return file.add_link(path, rank_file_name(first.rank), chunk_path(first.index));
    std::vector<Hdf5Piece> pieces;
    for (const ChunkRef &ref : tensor.pieces) {
        chunk = files[ref.rank.value()].table().chunk(ref.index);
        if (chunk.bytes != 0)
            pieces.push_back(
                {rank_file_name(ref.rank), chunk_path(ref.index), chunk.global_offset, chunk.local_shape});
    }
    bool text = valid_utf8(tensor.name) && tensor.name.find('\0') == std::string::npos;
    std::string name = text ? tensor.name : escape_name(tensor.name);
    const Hdf5Attribute attributes[] = {{"name", std::string_view(name)},
                                        {"dtype", std::string_view(dtype_name(tensor.dtype))}};
    if (pieces.empty()) return file.add_dataset(path, tensor.dtype, tensor.shape, attributes).take_status();
    return file.add_virtual(path, tensor.dtype, tensor.shape, pieces, attributes);
}

/// What the frame follows from: make_frame() may use nothing else.
FrameKey frame_key(std::span<const StorageFile> files, const IndexPlan &plan) {
    FrameKey key;
    key.add(files.size());
    for (const GlobalTensor &tensor : plan.tensors) {
        key.add(tensor.name).add(static_cast<std::uint64_t>(tensor.dtype)).add(tensor.shape);
        key.add(tensor.pieces.size());
        for (const ChunkRef &ref : tensor.pieces) {
            ChunkInfo chunk = files[ref.rank.value()].table().chunk(ref.index);
            key.add(std::uint64_t{ref.rank.value()}).add(ref.index);
            key.add(chunk.global_offset).add(chunk.local_shape);
        }
    }
    return key;
}

Result<std::shared_ptr<const StorageFrame>> make_frame(std::span<const StorageFile> files,
                                                       const IndexPlan &plan) {
    auto file = Hdf5File::create(0, plan.tensors.size());
    if (!file) return file.take_status();
    for (const char *group : {"/ranks", "/tensors"}) DLROVER_TRY(file->add_group(group));
    for (std::size_t rank = 0; rank < files.size(); ++rank) {
        std::string number = std::to_string(rank);
        DLROVER_TRY(file->add_link("/ranks/" + number, "rank-" + number + ".h5", "/"));
    }
    for (const GlobalTensor &tensor : plan.tensors) DLROVER_TRY(add_tensor(*file, files, tensor));
    auto memory = file->finish();
    if (!memory) return memory.take_status();
    auto packed = PackedMemory::pack(memory->get());
    if (!packed) return packed.take_status();
    auto frame = std::make_shared<StorageFrame>();
    frame->file = std::move(*packed);
    return std::shared_ptr<const StorageFrame>(std::move(frame));
}

Result<std::shared_ptr<const StorageFrame>> find_or_make_frame(std::span<const StorageFile> files,
                                                               StorageFrames &frames) {
    ObjectIdentity who = files.front().identity();
    frames.begin({who.generation, who.train_step});
    std::vector<const ObjectTableView *> tables;
    for (const StorageFile &rank : files) tables.push_back(&rank.table());
    IndexPlan plan = plan_index(tables);
    FrameKey key = frame_key(files, plan);
    if (auto frame = frames.find(key)) return frame;
    auto frame = make_frame(files, plan);
    if (frame) frames.keep(std::move(key), *frame);
    return frame;
}

/// The frame, and whose index it is.
Result<UniqueFd> complete_frame(const StorageFrame &frame, const ObjectIdentity &who) {
    auto copy = frame.file.unpack();
    if (!copy) return copy.take_status();
    auto file = Hdf5File::open(std::move(*copy));
    if (!file) return file.take_status();
    const Hdf5Attribute attributes[] = {
        {"format", std::string_view("dlrover-index")}, {"version", std::uint64_t{1}},
        {"train_step", who.train_step.value()},        {"term", who.generation.term.value()},
        {"generation", who.generation.number},         {"world_size", std::uint64_t{who.world_size}}};
    DLROVER_TRY(file->add_attributes(attributes));
    return file->finish();
}

}  // namespace

Result<FileSum> write_storage_index(const std::string &folder, std::span<const StorageFile> files,
                                    StorageFrames &frames) {
    if (files.empty()) return Status(Code::invalid_argument, "an index of no ranks");
    auto frame = find_or_make_frame(files, frames);
    if (!frame) return frame.take_status();
    auto memory = complete_frame(**frame, files.front().identity());
    if (!memory) return memory.take_status();
    auto bytes = file_size(memory->get(), "the index in memory");
    if (!bytes) return bytes.take_status();
    if (*bytes > max_index_bytes)
        return Status(Code::resource_exhausted, folder + ": the index is over 4 GiB");
    std::vector<std::uint8_t> content(*bytes);
    DLROVER_TRY(read_at(memory->get(), content.data(), content.size(), 0, "the index in memory"));
    DLROVER_TRY(write_whole_file(folder, index_file_name, content));
    return FileSum{*bytes, chunk_checksum(std::as_bytes(std::span(content)))};
}

Result<FileSum> write_storage_index(const std::string &folder, std::span<const RankFile> ranks) {
    auto files = open_all(folder, ranks);
    if (!files) return files.take_status();
    StorageFrames none(0);
    return write_storage_index(folder, *files, none);
}

}  // namespace dlrover::ckpt
