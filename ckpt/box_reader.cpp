// SPDX-License-Identifier: Apache-2.0
#include "ckpt/box_reader.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "ckpt/object_table.h"
#include "ckpt/storage_io.h"

namespace dlrover::ckpt {
namespace {

constexpr std::uint64_t window_bytes = 1u << 20, short_run_bytes = 256u << 10;

using Shape = std::span<const std::uint64_t>;
using Steps = std::array<std::uint64_t, max_dims>;

bool inside(Shape whole, Shape offset, Shape shape) {
    if (offset.size() != whole.size() || shape.size() != whole.size() || whole.size() > max_dims)
        return false;
    for (std::size_t i = 0; i < whole.size(); ++i)
        if (shape[i] > whole[i] || offset[i] > whole[i] - shape[i]) return false;
    return true;
}

/// Bytes from one element to the next along each dimension. No overflow where the array's bytes fit.
Steps steps_of(Shape whole, std::uint64_t unit) {
    Steps steps{};
    for (std::size_t i = whole.size(); i-- > 0; unit *= whole[i]) steps[i] = unit;
    return steps;
}

std::uint64_t product(Shape shape) {
    std::uint64_t result = 1;
    for (std::uint64_t n : shape) result *= n;
    return result;
}

/// How many of the first dimensions are walked through; the others lie in one piece.
std::size_t outer_dims(Shape whole, Shape shape) {
    std::size_t dims = whole.size();
    while (dims > 0 && shape[dims - 1] == whole[dims - 1]) --dims;
    return dims > 0 ? dims - 1 : 0;
}

/// The next position in row-major order; false after the last.
bool advance(Steps &position, Shape shape, std::size_t dims) {
    for (std::size_t i = dims; i-- > 0; position[i] = 0)
        if (++position[i] < shape[i]) return true;
    return false;
}

}  // namespace

Status BoxReader::read(Shape whole, std::uint64_t unit, Shape offset, Shape shape, std::span<std::byte> out) {
    if (!inside(whole, offset, shape))
        return Status(Code::invalid_argument, path_ + ": the part lies outside the chunk");
    bool empty = std::find(shape.begin(), shape.end(), 0u) != shape.end();
    if (out.size() != (empty ? 0 : product(shape) * unit))
        return Status(Code::invalid_argument, path_ + ": the part and its memory differ in size");
    if (empty) return {};
    std::size_t outer = outer_dims(whole, shape);
    std::uint64_t run = product(shape.subspan(outer)) * unit, start = 0;
    Steps steps = steps_of(whole, unit), position{};
    for (std::size_t i = 0; i < whole.size(); ++i) start += offset[i] * steps[i];
    do {
        std::uint64_t at = start;
        for (std::size_t i = 0; i < outer; ++i) at += position[i] * steps[i];
        DLROVER_TRY(read_run(at, out.first(run)));
        out = out.subspan(run);
    } while (advance(position, shape, outer));
    return {};
}

Status BoxReader::read_run(std::uint64_t at, std::span<std::byte> out) {
    if (out.size() >= short_run_bytes) return read_at(fd_, out.data(), out.size(), array_.offset + at, path_);
    bool there = at >= window_at_ && at - window_at_ <= window_.size() &&
                 out.size() <= window_.size() - (at - window_at_);
    if (!there) {
        window_.resize(std::min(window_bytes, array_.bytes - at));
        window_at_ = at;
        if (Status s = read_at(fd_, window_.data(), window_.size(), array_.offset + at, path_); !s.ok()) {
            window_.clear();
            return s;
        }
    }
    std::memcpy(out.data(), window_.data() + (at - window_at_), out.size());
    return {};
}

}  // namespace dlrover::ckpt
