// SPDX-License-Identifier: Apache-2.0
// Reads a rectangular part of a row-major array that lies in a file.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "ckpt/box_runs.h"
#include "ckpt/storage_header.h"

namespace dlrover::ckpt {

/// Long rows go straight to their place; short ones that lie close together are read at once, at most 1 MiB.
/// What lies before the first and behind the last wanted byte is never read. Not thread-safe.
class BoxReader {
  public:
    /// `array`: where it lies. `fd` and `path` outlive this.
    BoxReader(int fd, const std::string &path, Extent array) : fd_(fd), path_(path), array_(array) {}

    /// Elements [offset, offset + shape) of an array of `whole`, whose elements have `unit` bytes, into
    /// `out`. invalid_argument: outside of it, or sizes that do not fit.
    Status read(std::span<const std::uint64_t> whole, std::uint64_t unit,
                std::span<const std::uint64_t> offset, std::span<const std::uint64_t> shape,
                std::span<std::byte> out);
    /// The same into a place of a larger array, `out`, whose other elements stay as they are.
    Status read_into(const BoxPlace &from, std::uint64_t unit, std::span<const std::uint64_t> shape,
                     const BoxPlace &to, std::span<std::byte> out);

  private:
    Status read_together(BoxRuns runs, std::uint64_t end, std::span<std::byte> out);

    int fd_;
    const std::string &path_;
    Extent array_;
    std::vector<std::byte> window_;
};

}  // namespace dlrover::ckpt
