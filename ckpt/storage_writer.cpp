// SPDX-License-Identifier: Apache-2.0
#include "ckpt/storage_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "base/fault.h"
#include "ckpt/checksum.h"
#include "ckpt/direct_write.h"
#include "ckpt/storage_header.h"
#include "ckpt/storage_io.h"
#include "ckpt/storage_name.h"

namespace dlrover::ckpt {
namespace {

std::span<const std::byte> bytes_of(const SealedObject &object, std::uint64_t index, const ChunkInfo &chunk) {
    if (!object.scattered.empty()) return {object.scattered[index], chunk.bytes};
    return object.data.subspan(chunk.offset, chunk.bytes);
}

/// Compares memory with the table's checksums on a thread of its own.
class SourceCheck {
  public:
    SourceCheck(const SealedObject &object, const ObjectTableView &table, bool wanted) {
        if (wanted) thread_ = std::thread([&] { run(object, table); });
    }
    ~SourceCheck() {
        if (thread_.joinable()) thread_.join();
    }
    SourceCheck(const SourceCheck &) = delete;
    SourceCheck &operator=(const SourceCheck &) = delete;

    Status wait() {
        if (thread_.joinable()) thread_.join();
        return std::move(status_);
    }

  private:
    void run(const SealedObject &object, const ObjectTableView &table) {
        for (std::uint64_t i = 0; i < table.count() && status_.ok(); ++i) {
            ChunkInfo chunk = table.chunk(i);
            if (chunk.replica != 0 || chunk_checksum(bytes_of(object, i, chunk)) == chunk.checksum) continue;
            status_ = Status(Code::corrupt, "chunk \"" + std::string(chunk.name.substr(0, 200)) +
                                                "\" in memory does not have its checksum");
        }
    }
    Status status_;
    std::thread thread_;
};

/// The file gets its length. A full disk shows here, where the filesystem can reserve.
Status reserve(int fd, std::uint64_t bytes, const std::string &path) {
    int result;
    do result = ::fallocate(fd, 0, 0, static_cast<off_t>(bytes));
    while (result != 0 && errno == EINTR);
    if (result == 0) return {};
    if (errno != EOPNOTSUPP && errno != ENOSYS) return file_error("reserving room for", path);
    return ::ftruncate(fd, static_cast<off_t>(bytes)) == 0 ? Status() : file_error("resize of", path);
}

/// The chunks from the object, what lies between them from the frame.
Result<std::vector<FilePart>> parts_of(const SealedObject &object, const ObjectTableView &table,
                                       const StorageImage &image) {
    std::vector<Extent> chunks;
    std::vector<FilePart> parts{{0, storage_block_bytes, nullptr}};
    for (std::uint64_t i = 0; i < table.count(); ++i) {
        ChunkInfo chunk = table.chunk(i);
        std::uint64_t place = image.frame->places[i];
        if (place == not_stored || chunk.bytes == 0) continue;
        chunks.push_back({place, chunk.bytes});
        parts.push_back({place, chunk.bytes, bytes_of(object, i, chunk).data()});
    }
    auto gaps = gaps_between(chunks, image.file_bytes);
    if (!gaps) return gaps.take_status();
    for (const Extent &gap : *gaps) parts.push_back({gap.offset, gap.bytes, nullptr});
    std::sort(parts.begin(), parts.end(), [](auto &a, auto &b) { return a.offset < b.offset; });
    return parts;
}

Status write_content(int fd, const SealedObject &object, const ObjectTableView &table,
                     const StorageImage &image, const std::string &path, bool direct) {
    auto parts = parts_of(object, table, image);
    if (!parts) return parts.take_status();
    DLROVER_TRY(reserve(fd, image.file_bytes, path));
    DLROVER_TRY(write_parts(fd, path, image.memory.get(), *parts, direct));
    return ::fsync(fd) == 0 ? Status() : file_error("fsync of", path);
}

Status write_file(const std::string &folder, const SealedObject &object, const ObjectTableView &table,
                  const StorageImage &image, const StorageWriteOptions &options) {
    std::string name = rank_file_name(table.identity().rank), temporary = folder + "/.new-" + name;
    SourceCheck check(object, table, options.check_source);
    UniqueFd fd(::open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (!fd) return file_error("open of", temporary);
    Status status = write_content(fd.get(), object, table, image, temporary, options.direct);
    if (Status memory = check.wait(); !memory.ok()) status = std::move(memory);
    if (status.ok() && options.confirm) status = options.confirm();
    std::string path = folder + "/" + name;
    fault_point("writer_before_rename");
    if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) status = file_error("rename to", path);
    if (status.ok()) return sync_folder(folder);
    ::unlink(temporary.c_str());
    return status;
}

}  // namespace

Result<RankFile> write_storage_file(const std::string &folder, const SealedObject &object,
                                    const StorageWriteOptions &options) {
    auto table =
        ObjectTableView::parse(object.table, object.scattered.empty() ? object.data.size() : UINT64_MAX);
    if (!table) return table.take_status();
    if (!object.scattered.empty() && object.scattered.size() != table->count())
        return Status(Code::invalid_argument, "not every chunk has a place in memory");
    if (object.ledger.size() > max_ledger_bytes)
        return Status(Code::invalid_argument, "the ledger is larger than 64 KiB");
    ObjectIdentity who = table->identity();
    if (who.rank.value() >= who.world_size)
        return Status(Code::invalid_argument, "the object's rank is outside its world");
    DLROVER_TRY(make_folders(folder));
    DLROVER_TRY(remove_leftovers(folder, ".new-" + rank_file_name(who.rank)));
    StorageFrames none(0);
    auto image = make_storage_image(object, *table, options.frames != nullptr ? *options.frames : none);
    if (!image) return image.take_status();
    DLROVER_TRY(write_file(folder, object, *table, *image, options));
    std::uint64_t table_xxh3 = block_kernel().hash(object.table.data(), object.table.size());
    return RankFile{who.rank, image->file_bytes, table_xxh3, image->header_xxh3};
}

}  // namespace dlrover::ckpt
