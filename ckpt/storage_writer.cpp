// SPDX-License-Identifier: Apache-2.0
#include "ckpt/storage_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <optional>
#include <thread>

#include "base/fault.h"
#include "ckpt/checksum.h"
#include "ckpt/direct_write.h"
#include "ckpt/storage_file.h"
#include "ckpt/storage_header.h"
#include "ckpt/storage_io.h"
#include "ckpt/storage_name.h"
#include "ckpt/temporary_name.h"

namespace dlrover::ckpt {
namespace {

std::span<const std::byte> bytes_of(const SealedObject &object, std::uint64_t index, const ChunkInfo &chunk) {
    if (!object.scattered.empty()) return {object.scattered[index], chunk.bytes};
    return object.data.subspan(chunk.offset, chunk.bytes);
}

/// The file gets its length. A full disk shows here, where the filesystem can reserve.
Status reserve(int fd, std::uint64_t bytes, const std::string &path) {
    int result;
    do result = ::fallocate(fd, 0, 0, static_cast<off_t>(bytes));
    while (result != 0 && errno == EINTR);
    if (result == 0) return {};
    if (errno != EOPNOTSUPP && errno != ENOSYS) return file_error("reserving room for", path);
    return ::ftruncate(fd, static_cast<off_t>(bytes)) == 0 ? Status() : file_error("resize of", path);
}

std::vector<FilePart> parts_of(const SealedObject &object, const ObjectTableView &table,
                               const ChunkPlaces &places) {
    std::vector<FilePart> parts;
    parts.reserve(table.count());
    for (std::uint64_t i = 0; i < table.count(); ++i) {
        ChunkInfo chunk = table.chunk(i);
        if (chunk.replica != 0 || chunk.bytes == 0) continue;
        parts.push_back({places.of[i], chunk.bytes, bytes_of(object, i, chunk).data()});
    }
    return parts;
}

/// What was copied to be written has the table's checksums; of a block that two windows share, what was in
/// memory when the first of them was.
Status check_source(const ObjectTableView &table, const DirectWriter &writer) {
    const std::uint64_t empty[] = {chunk_checksum({})};
    for (std::uint64_t i = 0, part = 0; i < table.count(); ++i) {
        ChunkInfo chunk = table.chunk(i);
        if (chunk.replica != 0) continue;
        if (combine_block_hashes(chunk.bytes == 0 ? empty : writer.hashes(part++)) == chunk.checksum)
            continue;
        return Status(Code::corrupt, "chunk \"" + std::string(chunk.name.substr(0, 200)) +
                                         "\" in memory does not have its checksum");
    }
    return {};
}

/// Writes chunks from now on, on threads of its own and on that which waits. Three in all: of two, which the
/// device answers at the same time, both fill their windows while it has nothing to do.
class ChunkWrites {
  public:
    explicit ChunkWrites(DirectWriter &writer) : writer_(writer) {
        try {
            for (Run &run : others_) run.thread = std::thread([this, &run] { run.status = write(); });
        } catch (const std::exception &) {
            // no thread to be had, or no memory for it: with fewer, then
        }
    }
    ~ChunkWrites() {
        writer_.give_up();
        join();
    }
    ChunkWrites(const ChunkWrites &) = delete;
    ChunkWrites &operator=(const ChunkWrites &) = delete;

    Status wait() {
        Status status = write();
        join();
        for (Run &run : others_)
            if (status.ok()) status = std::move(run.status);
        return status;
    }

  private:
    struct Run {
        std::thread thread;
        Status status;
    };

    Status write() noexcept {
        try {
            return writer_.run();
        } catch (const std::exception &) {
            writer_.give_up();
            return Status(Code::resource_exhausted, "no memory");  // short: nothing is allocated for it
        }
    }

    void join() {
        for (Run &run : others_)
            if (run.thread.joinable()) run.thread.join();
    }

    DirectWriter &writer_;
    std::array<Run, 2> others_;
};

struct FileContent {
    const SealedObject &object;
    const ObjectTableView &table;
    const ChunkPlaces places = place_chunks(table);
};

/// While other threads write chunks, HDF5 describes them.
Result<StorageImage> write_content(int fd, const FileContent &content, const std::string &path,
                                   const StorageWriteOptions &options) {
    const ChunkPlaces &places = content.places;
    DLROVER_TRY(reserve(fd, places.end, path));
    DirectWriter writer(fd, path, {places.begin, places.end}, parts_of(content.object, content.table, places),
                        options.direct, options.check_source);
    writer.watch(options.watch);
    ChunkWrites chunks(writer);
    StorageFrames none(0);
    StorageFrames &frames = options.frames != nullptr ? *options.frames : none;
    auto image = make_storage_image(content.object, content.table, places, frames);
    if (!image) return image;
    DLROVER_TRY(reserve(fd, image->file_bytes, path));
    DLROVER_TRY(writer.copy(image->memory.get(), places.end, image->file_bytes));
    DLROVER_TRY(writer.copy(image->memory.get(), 0, places.begin));
    DLROVER_TRY(chunks.wait());
    if (options.check_source) DLROVER_TRY(check_source(content.table, writer));
    if (::fsync(fd) != 0) return file_error("fsync of", path);
    return image;
}

/// The file of the final name, where it holds the same object: as good as our own.
std::optional<RankFile> find_same(const std::string &path, const FileContent &content) {
    auto there = StorageFile::open(path);
    if (!there) return std::nullopt;
    RankFile summary = there->summary();
    const auto &object = content.object;
    bool same = check_identity(content.table.identity(), there->identity()).ok() &&
                summary.table_xxh3 == block_kernel().hash(object.table.data(), object.table.size()) &&
                std::ranges::equal(there->ledger(), object.ledger);
    return same ? std::optional(summary) : std::nullopt;
}

/// Other nodes may write the same object. What bears the name first, whole, keeps it; what is another
/// object's, of an attempt before, does not.
Result<RankFile> name_file(const std::string &temporary, const std::string &path, const FileContent &content,
                           RankFile own) {
    int error = take_name(temporary, path);
    if (error == 0) return own;
    auto same = error == EEXIST || error == ENOENT ? find_same(path, content) : std::nullopt;
    if (same) return *same;
    if (error == EEXIST) error = ::rename(temporary.c_str(), path.c_str()) == 0 ? 0 : errno;
    if (error == 0) return own;
    if (error == ENOENT)
        return Status(Code::stale, temporary + " was removed by another writer of this checkpoint");
    return file_error("rename to", path, error);
}

Result<RankFile> write_file(const std::string &folder, const FileContent &content,
                            const StorageWriteOptions &options) {
    Rank rank = content.table.identity().rank;
    std::string name = rank_file_name(rank), temporary = folder + "/" + temporary_name(name);
    UniqueFd fd(::open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (!fd) return file_error("open of", temporary);
    auto image = write_content(fd.get(), content, temporary, options);
    Status status = image.take_status();
    if (status.ok() && options.confirm) status = options.confirm();
    fault_point("writer_before_rename");
    const auto &table = content.object.table;
    Result<RankFile> named = std::move(status);
    if (named.status().ok())
        named = name_file(
            temporary, folder + "/" + name, content,
            {rank, image->file_bytes, block_kernel().hash(table.data(), table.size()), image->header_xxh3});
    ::unlink(temporary.c_str());
    if (named) DLROVER_TRY(sync_folder(folder));
    return named;
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
    DLROVER_TRY(remove_abandoned(folder, ".new-" + rank_file_name(who.rank) + ".", FolderLink::refused));
    return write_file(folder, FileContent{object, *table}, options);
}

}  // namespace dlrover::ckpt
