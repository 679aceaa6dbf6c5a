// SPDX-License-Identifier: Apache-2.0
#include "ckpt/storage_file.h"

#include <algorithm>

#include "ckpt/box_reader.h"
#include "ckpt/checksum.h"
#include "ckpt/storage_io.h"

namespace dlrover::ckpt {
namespace {

bool same_identity(const StorageHeader &header, const ObjectIdentity &who) {
    return header.train_step == who.train_step.value() && header.term == who.generation.term.value() &&
           header.generation_number == who.generation.number && header.rank == who.rank.value() &&
           header.world_size == who.world_size;
}

template <typename Element>
Status read_checked(int fd, std::vector<Element> &out, std::uint64_t count, std::uint64_t offset,
                    std::uint64_t xxh3, const char *what, const std::string &path) {
    out.resize(count);
    DLROVER_TRY(read_at(fd, out.data(), count * sizeof(Element), offset, path));
    if (block_kernel().hash(out.data(), count * sizeof(Element)) == xxh3) return {};
    return Status(Code::corrupt, path + ": the checksum of the " + what + " is wrong");
}

}  // namespace

Result<StorageFile> StorageFile::open(const std::string &path) {
    StorageFile file;
    auto fd = open_to_read(path);
    if (!fd) return fd.take_status();
    file.fd_ = std::move(*fd);
    file.path_ = path;
    Status status = file.read_frame();
    if (status.code() == Code::corrupt) {
        forget_cached(file.fd_.get(), 0, 0);
        status = file.read_frame();
    }
    if (!status.ok()) return status;
    return file;
}

Status StorageFile::read_frame() {
    auto bytes = file_size(fd_.get(), path_);
    if (!bytes) return bytes.take_status();
    std::vector<std::uint8_t> block(storage_block_bytes);
    DLROVER_TRY(read_at(fd_.get(), block.data(), block.size(), 0, path_));
    auto header = decode_storage_header(block, *bytes);
    if (!header) return std::move(header.take_status()).with_context(path_);
    header_ = *header;
    header_xxh3_ = storage_header_xxh3(block);
    DLROVER_TRY(read_checked(fd_.get(), table_bytes_, header_.table_bytes, header_.table_offset,
                             header_.table_xxh3, "object table", path_));
    DLROVER_TRY(read_checked(fd_.get(), ledger_, header_.ledger_bytes, header_.ledger_offset,
                             header_.ledger_xxh3, "ledger", path_));
    DLROVER_TRY(read_checked(fd_.get(), places_, header_.chunk_count, header_.places_offset,
                             header_.places_xxh3, "list of places", path_));
    auto table = ObjectTableView::parse(table_bytes_);
    if (!table) return std::move(table.take_status()).with_context(path_);
    table_ = std::move(*table);
    if (!same_identity(header_, table_.identity()) || table_.count() != places_.size())
        return Status(Code::corrupt, path_ + ": the object table belongs to another file");
    return check_places();
}

Status StorageFile::check_places() {
    std::vector<Extent> extents;
    for (std::uint64_t i = 0; i < places_.size(); ++i) {
        ChunkInfo chunk = table_.chunk(i);
        if (stored(i) != (chunk.replica == 0))
            return Status(Code::corrupt, path_ + ": a chunk is stored that should not be, or is not");
        if (stored(i)) extents.push_back({places_[i], chunk.bytes});
    }
    auto gaps = gaps_between(extents, header_.file_bytes);
    if (!gaps) return std::move(gaps.take_status()).with_context(path_);
    gaps_ = std::move(*gaps);
    return {};
}

RankFile StorageFile::summary() const {
    return {Rank(header_.rank), header_.file_bytes, header_.table_xxh3, header_xxh3_};
}

Status StorageFile::wrong_chunk(std::uint64_t index) const {
    std::string name(table_.chunk(index).name.substr(0, 200));
    return Status(Code::corrupt, path_ + ": the checksum of chunk \"" + name + "\" is wrong");
}

Status StorageFile::read_chunk(std::uint64_t index, std::span<std::byte> out) const {
    DLROVER_TRY(read_at(fd_.get(), out.data(), out.size(), places_[index], path_));
    return chunk_checksum(out) == table_.chunk(index).checksum ? Status() : wrong_chunk(index);
}

Status StorageFile::read_part(std::uint64_t index, std::span<const std::uint64_t> offset,
                              std::span<const std::uint64_t> shape, std::span<std::byte> out) const {
    ChunkInfo chunk = table_.chunk(index);
    if (!stored(index)) return Status(Code::invalid_argument, path_ + ": the chunk is not in this file");
    BoxReader reader(fd_.get(), path_, {places_[index], chunk.bytes});
    return reader.read(chunk.local_shape, element_bytes(chunk.dtype), offset, shape, out);
}

Status StorageFile::read_part_into(std::uint64_t index, std::span<const std::uint64_t> offset,
                                   std::span<const std::uint64_t> shape, const BoxPlace &to,
                                   std::span<std::byte> out) const {
    ChunkInfo chunk = table_.chunk(index);
    if (!stored(index)) return Status(Code::invalid_argument, path_ + ": the chunk is not in this file");
    BoxReader reader(fd_.get(), path_, {places_[index], chunk.bytes});
    return reader.read_into({chunk.local_shape, offset}, element_bytes(chunk.dtype), shape, to, out);
}

Status StorageFile::read_bytes(std::uint64_t index, std::uint64_t at, std::span<std::byte> out) const {
    return read_at(fd_.get(), out.data(), out.size(), places_[index] + at, path_);
}

void StorageFile::forget(std::uint64_t index) const {
    forget_cached(fd_.get(), places_[index], table_.chunk(index).bytes);
}

Status StorageFile::reopen() {
    auto fd = open_to_read(path_);
    if (!fd) return fd.take_status();
    auto bytes = file_size(fd->get(), path_);
    if (!bytes) return bytes.take_status();
    std::vector<std::uint8_t> block(storage_block_bytes);
    DLROVER_TRY(read_at(fd->get(), block.data(), block.size(), 0, path_));
    if (*bytes != header_.file_bytes || storage_header_xxh3(block) != header_xxh3_)
        return Status(Code::corrupt, path_ + " is another file than before");
    fd_ = std::move(*fd);
    return {};
}

Status StorageFile::verify_chunk(std::uint64_t index, const ReadWatch &watch) const {
    ChunkInfo chunk = table_.chunk(index);
    std::vector<std::uint64_t> hashes;
    DLROVER_TRY(hash_range(fd_.get(), places_[index], chunk.bytes, path_, hashes, watch));
    return combine_block_hashes(hashes) == chunk.checksum ? Status() : wrong_chunk(index);
}

Status StorageFile::verify_rest(const ReadWatch &watch) const {
    std::vector<std::uint64_t> hashes;
    for (const Extent &gap : gaps_)
        DLROVER_TRY(hash_range(fd_.get(), gap.offset, gap.bytes, path_, hashes, watch));
    if (!hashes.empty() && combine_block_hashes(hashes) == header_.rest_xxh3) return {};
    return Status(Code::corrupt, path_ + ": the checksum of HDF5's own metadata is wrong");
}

std::vector<Status> StorageFile::damage(const ReadWatch &watch) const {
    std::vector<Status> found;
    for (std::uint64_t i = 0; i < places_.size(); ++i) {
        if (!stored(i)) continue;
        if (Status status = verify_chunk(i, watch); !status.ok()) found.push_back(std::move(status));
    }
    if (Status status = verify_rest(watch); !status.ok()) found.push_back(std::move(status));
    return found;
}

Status StorageFile::verify() const {
    for (std::uint64_t i = 0; i < places_.size(); ++i)
        if (stored(i)) DLROVER_TRY(verify_chunk(i, {}));
    return verify_rest({});
}

}  // namespace dlrover::ckpt
