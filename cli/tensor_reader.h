// SPDX-License-Identifier: Apache-2.0
// The bytes of a global tensor, put together out of the ranks' pieces.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "cli/ckpt_view.h"

namespace dlrover::cli {

using Shape = std::span<const std::uint64_t>;

/// Puts a row-major, contiguous box of `local` elements of `unit` bytes at `offset` of an array of `whole`.
/// Precondition: it lies inside; the sizes of `box` and `array` are those of their shapes.
void place_box(Shape whole, Shape offset, Shape local, std::uint64_t unit, std::span<const std::byte> box,
               std::span<std::byte> array);

/// Holds one tensor and, where it lies in several pieces, one piece in memory. One thread at a time.
class TensorReader {
  public:
    /// `view` outlives this.
    explicit TensorReader(const CheckpointView &view) : view_(view) {}

    /// Verified. Valid until the next call. `tensor` is of view.plan. corrupt: a checksum is wrong.
    Result<std::span<const std::byte>> read(const ckpt::GlobalTensor &tensor);

  private:
    struct Buffer {
        std::unique_ptr<std::byte[]> bytes;
        std::uint64_t size = 0;
        std::span<std::byte> take(std::uint64_t count);
    };
    const CheckpointView &view_;
    Buffer whole_, piece_;
};

}  // namespace dlrover::cli
