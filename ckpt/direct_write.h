// SPDX-License-Identifier: Apache-2.0
// Writes a whole file that is put together from several places in memory, past the page cache where the
// filesystem can.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"

namespace dlrover::ckpt {

/// Bytes [offset, offset + bytes) of the file.
struct FilePart {
    std::uint64_t offset, bytes;
    const std::byte *data;  ///< null: they are at the same offset of the frame
};

/// Writes `parts`, which follow one another without a gap from offset 0 on, to the file `path`, open as `fd`
/// and already that long. `frame`: a memfd. In windows of 4 MiB, each one write: two threads take turns, so
/// that one puts a window together while the other waits for the device. `direct`: false, through the page
/// cache only. What can not go directly is written through `fd`; the caller calls fsync. On failure what was
/// written is undefined.
Status write_parts(int fd, const std::string &path, int frame, std::span<const FilePart> parts, bool direct);

}  // namespace dlrover::ckpt
