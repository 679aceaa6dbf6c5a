// SPDX-License-Identifier: Apache-2.0
#include "ckpt/box_reader.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "ckpt/storage_io.h"

namespace dlrover::ckpt {
namespace {

constexpr std::uint64_t window_bytes = 1u << 20, short_run_bytes = 256u << 10;
/// What is not wanted between two stretches is read where that takes no longer than another call.
constexpr std::uint64_t most_between_bytes = 64u << 10;

using Shape = std::span<const std::uint64_t>;

}  // namespace

Status BoxReader::read(Shape whole, std::uint64_t unit, Shape offset, Shape shape, std::span<std::byte> out) {
    std::array<std::uint64_t, max_dims> origin{};
    std::size_t dims = std::min(shape.size(), max_dims);
    return read_into({whole, offset}, unit, shape, {shape.first(dims), std::span(origin).first(dims)}, out);
}

Status BoxReader::read_into(const BoxPlace &from, std::uint64_t unit, Shape shape, const BoxPlace &to,
                            std::span<std::byte> out) {
    if (!box_inside(from, shape))
        return Status(Code::invalid_argument, path_ + ": the part lies outside the chunk");
    bool empty = std::find(to.whole.begin(), to.whole.end(), 0u) != to.whole.end();
    if (!box_inside(to, shape) || out.size() != (empty ? 0 : box_elements(to.whole) * unit))
        return Status(Code::invalid_argument, path_ + ": the part and its memory differ in size");
    for (BoxRuns runs(from, to, shape, unit); !runs.done();) {
        BoxRuns first = runs;
        std::uint64_t end = 0;
        do {
            end = runs.a() + runs.bytes();
            runs.next();
        } while (!runs.done() && runs.bytes() < short_run_bytes && runs.a() - end <= most_between_bytes &&
                 runs.a() + runs.bytes() - first.a() <= window_bytes);
        DLROVER_TRY(read_together(first, end, out));
    }
    return {};
}

/// All of them that begin before `end`, by one call.
Status BoxReader::read_together(BoxRuns runs, std::uint64_t end, std::span<std::byte> out) {
    std::uint64_t begin = runs.a();
    auto place = [&] { return out.subspan(runs.b(), runs.bytes()); };
    if (end - begin == runs.bytes())
        return read_at(fd_, place().data(), end - begin, array_.offset + begin, path_);
    window_.resize(end - begin);
    DLROVER_TRY(read_at(fd_, window_.data(), window_.size(), array_.offset + begin, path_));
    for (; !runs.done() && runs.a() < end; runs.next())
        std::memcpy(place().data(), window_.data() + (runs.a() - begin), runs.bytes());
    return {};
}

}  // namespace dlrover::ckpt
