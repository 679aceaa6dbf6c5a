// SPDX-License-Identifier: Apache-2.0
#include "cli/tensor_reader.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace dlrover::cli {
namespace {

using namespace dlrover::ckpt;
using Steps = std::array<std::uint64_t, max_dims>;

/// How many of the first dimensions are walked through; the others lie in one piece of the array.
std::size_t outer_dims(Shape whole, Shape local) {
    std::size_t dims = whole.size();
    while (dims > 0 && local[dims - 1] == whole[dims - 1]) --dims;
    return dims > 0 ? dims - 1 : 0;
}

bool advance(Steps &position, Shape shape, std::size_t dims) {
    for (std::size_t i = dims; i-- > 0; position[i] = 0)
        if (++position[i] < shape[i]) return true;
    return false;
}

}  // namespace

void place_box(Shape whole, Shape offset, Shape local, std::uint64_t unit, std::span<const std::byte> box,
               std::span<std::byte> array) {
    if (box.empty()) return;
    Steps steps{}, position{};
    std::size_t outer = outer_dims(whole, local);
    std::uint64_t step = unit, run = unit, start = 0;
    for (std::size_t i = whole.size(); i-- > 0; step *= whole[i]) {
        steps[i] = step;
        start += offset[i] * step;
        if (i >= outer) run *= local[i];
    }
    do {
        std::uint64_t at = start;
        for (std::size_t i = 0; i < outer; ++i) at += position[i] * steps[i];
        std::memcpy(array.data() + at, box.data(), run);
        box = box.subspan(run);
    } while (advance(position, local, outer));
}

std::span<std::byte> TensorReader::Buffer::take(std::uint64_t count) {
    if (count > size) {
        bytes.reset();
        bytes = std::make_unique_for_overwrite<std::byte[]>(count);
        size = count;
    }
    return {bytes.get(), count};
}

Result<std::span<const std::byte>> TensorReader::read(const GlobalTensor &tensor) {
    std::span<std::byte> whole = whole_.take(tensor_bytes(tensor));
    for (const ChunkRef &ref : tensor.pieces) {
        ChunkInfo chunk = view_.chunk(ref);
        bool all = tensor.pieces.size() == 1;
        std::span<std::byte> piece = all ? whole : piece_.take(chunk.bytes);
        if (piece.size() != chunk.bytes)
            return Status(Code::internal, "tensor \"" + tensor.name + "\" is not the size of its piece");
        DLROVER_TRY(view_.files[ref.rank.value()].read_chunk(ref.index, piece));
        if (!all)
            place_box(tensor.shape, chunk.global_offset, chunk.local_shape, element_bytes(tensor.dtype),
                      piece, whole);
    }
    return std::span<const std::byte>(whole);
}

}  // namespace dlrover::cli
