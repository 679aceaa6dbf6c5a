// SPDX-License-Identifier: Apache-2.0
#include "ckpt/box_reader.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "ckpt/storage_io.h"

namespace dlrover::ckpt {
namespace {

constexpr std::uint64_t window_bytes = 1u << 20, short_run_bytes = 256u << 10;

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
    for (BoxRuns runs(from, to, shape, unit); !runs.done(); runs.next())
        DLROVER_TRY(read_run(runs.a(), out.subspan(runs.b(), runs.bytes())));
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
