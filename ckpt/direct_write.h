// SPDX-License-Identifier: Apache-2.0
// Writes a file that is put together from many places in memory, past the page cache where the filesystem
// can, and compares what it writes with its checksums on the way.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace dlrover::ckpt {

/// Bytes [offset, offset + bytes) of the file, at least one.
struct FilePart {
    std::uint64_t offset, bytes;
    const std::byte *data;
};

/// A stretch of a file; multiples of 4096.
struct FileStretch {
    std::uint64_t begin, end;
};

/// Fills one stretch of a file with parts, in windows of 4 MiB, each one write. Any number of threads may
/// take turns, so that one puts a window together while another waits for the device.
class DirectWriter {
  public:
    /// Of the file `path`, open as `fd` and long enough. `parts`: in the order of their offsets, within the
    /// stretch; zeros between them. `direct`: false, through the page cache only. `hash`: hashes() is wanted.
    DirectWriter(int fd, const std::string &path, FileStretch stretch, std::vector<FilePart> parts,
                 bool direct, bool hash);

    /// Told of each window's bytes once they are written, by the thread that wrote them. Before run().
    void watch(std::function<void(std::uint64_t bytes)> watch) { watch_ = std::move(watch); }

    /// Writes windows until none is left or one failed, here or in another thread: that one says why. What
    /// can not go directly is written through `fd`; the caller calls fsync.
    Status run();
    /// Other threads' run() ends soon; what has been written is of no use.
    void give_up() noexcept { failed_ = true; }
    /// When all run() are over and none failed: of each block of 1 MiB of the part, as it was when it was
    /// written.
    std::span<const std::uint64_t> hashes(std::size_t part) const;

    /// Copies [begin, end) of `frame`, a memfd, to the same place of the file. While others run().
    Status copy(int frame, std::uint64_t begin, std::uint64_t end);

  private:
    using Buffer = std::unique_ptr<std::byte, void (*)(void *)>;
    Result<Buffer> make_buffer() const;
    void fill(std::byte *window, FileStretch at);
    void copy_part(std::size_t part, std::byte *window, FileStretch at);
    Status write(const std::byte *window, std::uint64_t at, std::uint64_t bytes);
    Status settle(std::uint64_t at) const;

    const int fd_;
    const std::string path_;
    const FileStretch stretch_;
    const std::vector<FilePart> parts_;
    const bool hash_;
    std::function<void(std::uint64_t bytes)> watch_;
    std::vector<std::size_t> first_hash_;  ///< of each part, and one more
    std::vector<std::uint64_t> hashes_;    ///< each written by one thread
    UniqueFd direct_;
    std::atomic<bool> direct_works_{false}, failed_{false};
    std::atomic<std::uint64_t> next_;  ///< the next window: a multiple of its length
};

}  // namespace dlrover::ckpt
