// SPDX-License-Identifier: Apache-2.0
#include "ckpt/direct_write.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "base/fault.h"
#include "base/unique_fd.h"
#include "ckpt/storage_io.h"

namespace dlrover::ckpt {
namespace {

constexpr std::uint64_t block_bytes = 4096;       // of a direct write: memory, offset, length
constexpr std::uint64_t window_bytes = 4u << 20;  // one call; also the size of a thread's buffer

/// Whether writes of 4096 bytes at multiples of it, in the file and in memory, can go directly.
bool blocks_go_directly(int fd) {
#ifdef STATX_DIOALIGN
    struct statx info;
    if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 && (info.stx_mask & STATX_DIOALIGN) != 0)
        return info.stx_dio_offset_align != 0 && block_bytes % info.stx_dio_offset_align == 0 &&
               info.stx_dio_mem_align != 0 && block_bytes % info.stx_dio_mem_align == 0;
#else
    (void)fd;
#endif
    return true;  // shows when the file is opened, or at the first write
}

/// What both threads share.
class PartWriter {
  public:
    PartWriter(int fd, const std::string &path, int frame, std::span<const FilePart> parts, bool direct)
        : fd_(fd), path_(path), frame_(frame), parts_(parts) {
        if (!parts.empty()) file_bytes_ = parts.back().offset + parts.back().bytes;
        if (direct && blocks_go_directly(fd))
            direct_.reset(::open(path.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC | O_NOFOLLOW));
        direct_works_ = static_cast<bool>(direct_);
    }
    std::uint64_t file_bytes() const noexcept { return file_bytes_; }

    /// Writes windows until none is left or one fails.
    Status run() {
        std::unique_ptr<void, decltype(&std::free)> buffer(std::aligned_alloc(block_bytes, window_bytes),
                                                           std::free);
        if (!buffer) return Status(Code::resource_exhausted, "no memory to write " + path_);
        auto *window = static_cast<std::byte *>(buffer.get());
        for (std::uint64_t at; !failed_ && (at = window_bytes * next_++) < file_bytes_;) {
            std::uint64_t bytes = std::min(window_bytes, file_bytes_ - at);
            Status status = fill(window, at, bytes);
            if (status.ok()) status = write(window, at, bytes);
            fault_point("writer_mid_file");
            if (status.ok()) continue;
            failed_ = true;
            return status;
        }
        return {};
    }

  private:
    Status fill(std::byte *window, std::uint64_t at, std::uint64_t bytes) const {
        auto part = std::upper_bound(parts_.begin(), parts_.end(), at,
                                     [](std::uint64_t value, const FilePart &p) { return value < p.offset; });
        for (--part; part != parts_.end() && part->offset < at + bytes; ++part) {
            std::uint64_t from = std::max(at, part->offset),
                          to = std::min(at + bytes, part->offset + part->bytes);
            if (from >= to) continue;
            if (part->data != nullptr)
                std::memcpy(window + (from - at), part->data + (from - part->offset), to - from);
            else
                DLROVER_TRY(read_at(frame_, window + (from - at), to - from, from, "the frame in memory"));
        }
        return {};
    }

    /// The file's last bytes, if they are no whole block, go through the page cache.
    Status write(const std::byte *window, std::uint64_t at, std::uint64_t bytes) {
        std::uint64_t done = 0, blocks = bytes / block_bytes * block_bytes;
        while (direct_works_ && done < blocks && done % block_bytes == 0) {
            ssize_t n = ::pwrite(direct_.get(), window + done, blocks - done, static_cast<off_t>(at + done));
            if (n < 0 && errno == EINTR) continue;
            if (n < 0 && errno != EINVAL) return file_error("write of", path_);
            if (n < 0) direct_works_ = false;  // the filesystem promised more than it holds
            if (n > 0) done += static_cast<std::uint64_t>(n);
        }
        return write_at(fd_, window + done, bytes - done, at + done, path_);
    }

    int fd_;
    const std::string &path_;
    int frame_;
    std::span<const FilePart> parts_;
    std::uint64_t file_bytes_ = 0;
    UniqueFd direct_;
    std::atomic<bool> direct_works_{false}, failed_{false};
    std::atomic<std::uint64_t> next_{0};
};

}  // namespace

Status write_parts(int fd, const std::string &path, int frame, std::span<const FilePart> parts, bool direct) {
    PartWriter writer(fd, path, frame, parts, direct);
    if (writer.file_bytes() <= window_bytes) return writer.run();
    Status other;
    std::thread second([&] { other = writer.run(); });
    Status mine = writer.run();
    second.join();
    return mine.ok() ? std::move(other) : std::move(mine);
}

}  // namespace dlrover::ckpt
