// SPDX-License-Identifier: Apache-2.0
#include "ckpt/direct_write.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/fault.h"
#include "ckpt/checksum.h"
#include "ckpt/huge_pages.h"
#include "ckpt/storage_answers.h"
#include "ckpt/storage_io.h"

namespace dlrover::ckpt {
namespace {

constexpr std::uint64_t block_bytes = 4096;       // of a direct write: memory, offset, length
constexpr std::uint64_t window_bytes = 4u << 20;  // one call, at a multiple of it; also a thread's buffer
constexpr std::uint64_t windows_to_settle = 64;   // through the page cache

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

}  // namespace

DirectWriter::DirectWriter(int fd, const std::string &path, FileStretch stretch, std::vector<FilePart> parts,
                           bool direct, bool hash)
    : fd_(fd),
      path_(path),
      stretch_(stretch),
      parts_(std::move(parts)),
      hash_(hash),
      next_(stretch.begin / window_bytes * window_bytes) {
    if (direct && blocks_go_directly(fd))
        direct_.reset(::open(path.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC | O_NOFOLLOW));
    direct_works_ = static_cast<bool>(direct_);
    if (!hash) return;
    first_hash_.reserve(parts_.size() + 1);
    first_hash_.push_back(0);
    for (const FilePart &part : parts_)
        first_hash_.push_back(first_hash_.back() + checksum_blocks(part.bytes));
    hashes_.resize(first_hash_.back());
}

std::span<const std::uint64_t> DirectWriter::hashes(std::size_t part) const {
    return std::span(hashes_).subspan(first_hash_[part], first_hash_[part + 1] - first_hash_[part]);
}

// For many windows of huge pages where the kernel has them: measured, the device then takes one in 0.8 of the
// time.
Result<DirectWriter::Buffer> DirectWriter::make_buffer() const {
    Buffer buffer(static_cast<std::byte *>(std::aligned_alloc(huge_page_bytes, window_bytes)), std::free);
    bool many = stretch_.end - stretch_.begin >= 2 * window_bytes;
    if (buffer && many) ::madvise(buffer.get(), window_bytes, MADV_HUGEPAGE);
    if (!buffer) return Status(Code::resource_exhausted, "no memory to write " + path_);
    return buffer;
}

Status DirectWriter::run() {
    auto buffer = make_buffer();
    if (!buffer) give_up();
    if (!buffer) return buffer.take_status();
    for (std::uint64_t at; !failed_ && (at = next_.fetch_add(window_bytes)) < stretch_.end;) {
        FileStretch window{std::max(at, stretch_.begin), std::min(at + window_bytes, stretch_.end)};
        fill(buffer->get(), window);
        Status status = write(buffer->get(), window.begin, window.end - window.begin);
        if (status.ok()) status = settle(at);
        fault_point("writer_mid_file");
        if (!status.ok()) {
            give_up();
            return status;
        }
        if (watch_) watch_(window.end - window.begin);
    }
    return {};
}

Status DirectWriter::copy(int frame, std::uint64_t begin, std::uint64_t end) {
    auto buffer = make_buffer();
    if (!buffer) return buffer.take_status();
    for (std::uint64_t at = begin, bytes; at < end; at += bytes) {
        bytes = std::min(window_bytes - at % window_bytes, end - at);
        DLROVER_TRY(read_at(frame, buffer->get(), bytes, at, "the frame in memory"));
        DLROVER_TRY(write(buffer->get(), at, bytes));
    }
    return {};
}

void DirectWriter::fill(std::byte *window, FileStretch at) {
    auto first = std::partition_point(parts_.begin(), parts_.end(),
                                      [&](const FilePart &p) { return p.offset + p.bytes <= at.begin; });
    std::uint64_t filled = at.begin;
    for (auto part = first; part != parts_.end() && part->offset < at.end; ++part) {
        if (part->offset > filled) std::memset(window + (filled - at.begin), 0, part->offset - filled);
        copy_part(static_cast<std::size_t>(part - parts_.begin()), window, at);
        filled = std::min(at.end, part->offset + part->bytes);
    }
    std::memset(window + (filled - at.begin), 0, at.end - filled);
}

/// What was copied is hashed while it is in the cache. A block that is not wholly in the window is hashed
/// where it comes from, by who writes its beginning.
void DirectWriter::copy_part(std::size_t index, std::byte *window, FileStretch at) {
    const FilePart &part = parts_[index];
    std::uint64_t skipped = part.offset < at.begin ? at.begin - part.offset : 0;
    for (std::uint64_t block = skipped / checksum_block_bytes; block < checksum_blocks(part.bytes); ++block) {
        std::uint64_t in_part = block * checksum_block_bytes, begin = part.offset + in_part,
                      bytes = std::min<std::uint64_t>(checksum_block_bytes, part.bytes - in_part);
        if (begin >= at.end) break;
        const std::byte *data = part.data + in_part;
        std::uint64_t from = std::max(begin, at.begin), to = std::min(begin + bytes, at.end);
        std::byte *target = window + (from - at.begin);
        std::memcpy(target, data + (from - begin), to - from);
        if (hash_ && from == begin)
            hashes_[first_hash_[index] + block] =
                block_kernel().hash(to - from == bytes ? target : data, bytes);
    }
}

/// The file's last bytes, if they are no whole block, go through the page cache.
Status DirectWriter::write(const std::byte *window, std::uint64_t at, std::uint64_t bytes) {
    if (int error = fault_error("storage_write"); error != 0) return file_error("write of", path_, error);
    std::uint64_t done = 0, blocks = bytes / block_bytes * block_bytes;
    while (direct_works_ && done < blocks && done % block_bytes == 0) {
        ssize_t n = ::pwrite(direct_.get(), window + done, blocks - done, static_cast<off_t>(at + done));
        note_storage_answer();
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno != EINVAL) return file_error("write of", path_);
        if (n < 0) direct_works_ = false;  // the filesystem promised more than it holds
        if (n == 0) break;
        if (n > 0) done += static_cast<std::uint64_t>(n);
    }
    return write_at(fd_, window + done, bytes - done, at + done, path_);
}

/// What goes through the page cache goes on to the device as it is written: else the file's fsync is one call
/// that takes as long as all of it, and nobody knows slow storage from one that hangs.
Status DirectWriter::settle(std::uint64_t at) const {
    if (direct_works_ || (at / window_bytes + 1) % windows_to_settle != 0) return {};
    return ::fdatasync(fd_) == 0 ? Status() : file_error("fdatasync of", path_);
}

}  // namespace dlrover::ckpt
