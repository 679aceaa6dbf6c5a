// SPDX-License-Identifier: Apache-2.0
// The global tensors of a checkpoint, read by global offset.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"
#include "ckpt/dtype.h"

namespace dlrover::lib {

struct TensorInfo {
    std::string_view name;  ///< followed by a zero byte; lives as long as the tensors
    ckpt::DType dtype = ckpt::DType::Bytes;
    std::span<const std::uint64_t> shape;
};

/// A box of a global tensor and memory for it, row-major; shapes in elements.
struct TensorBox {
    std::string_view name;
    ckpt::DType dtype = ckpt::DType::Bytes;
    std::span<const std::uint64_t> offset, shape;
    std::span<std::byte> out;
};

/// One thread at a time.
class GlobalTensors {
  public:
    virtual ~GlobalTensors() = default;
    /// How many ranks saved the checkpoint.
    virtual std::uint32_t saved_by() const = 0;
    virtual Result<std::uint64_t> count() = 0;
    /// Precondition: index < count().
    virtual Result<TensorInfo> tensor(std::uint64_t index) = 0;
    /// Fills the whole box, or fails. not_found: no such name. invalid_argument: another type, outside of the
    /// tensor, or memory of another size. unsupported: the name is no one tensor, or a part of the box is out
    /// of reach. corrupt: damaged.
    virtual Status read(const TensorBox &box) = 0;
};

/// The box is a part of the tensor, of its type, and its memory has its size.
Status check_box(const TensorBox &box, const TensorInfo &tensor);

}  // namespace dlrover::lib
