// SPDX-License-Identifier: Apache-2.0
#include "lib/global_tensors.h"

#include <string>

#include "ckpt/box_runs.h"

namespace dlrover::lib {
namespace {

std::string shape_text(std::span<const std::uint64_t> shape) {
    std::string text = "[";
    for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
    return text + "]";
}

bool right_size(const TensorBox &box) {
    std::uint64_t bytes = ckpt::element_bytes(box.dtype);
    for (std::uint64_t n : box.shape)
        if (n == 0) return box.out.empty();
    for (std::uint64_t n : box.shape)
        if (__builtin_mul_overflow(bytes, n, &bytes)) return false;
    return bytes == box.out.size();
}

}  // namespace

Status check_box(const TensorBox &box, const TensorInfo &tensor) {
    std::string name = "tensor \"" + std::string(box.name.substr(0, 200)) + "\"";
    if (box.dtype != tensor.dtype)
        return Status(Code::invalid_argument,
                      name + " has elements of type " + std::to_string(static_cast<unsigned>(tensor.dtype)) +
                          ", not " + std::to_string(static_cast<unsigned>(box.dtype)));
    if (!ckpt::box_inside({tensor.shape, box.offset}, box.shape))
        return Status(Code::invalid_argument, "the box at " + shape_text(box.offset) + " of shape " +
                                                  shape_text(box.shape) + " is no part of " + name +
                                                  ", whose shape is " + shape_text(tensor.shape));
    if (!right_size(box))
        return Status(Code::invalid_argument, "the memory for a part of " + name + " has another size");
    return {};
}

}  // namespace dlrover::lib
