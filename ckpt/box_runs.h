// SPDX-License-Identifier: Apache-2.0
// Walks through a rectangular part that two row-major arrays share. Pure.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "ckpt/object_table.h"

namespace dlrover::ckpt {

/// An array and where the part begins in it; elements.
struct BoxPlace {
    std::span<const std::uint64_t> whole, offset;
};

/// Whether [offset, offset + shape) is a part of the array. No overflow whatever the numbers.
inline bool box_inside(const BoxPlace &array, std::span<const std::uint64_t> shape) {
    std::size_t dims = array.whole.size();
    if (array.offset.size() != dims || shape.size() != dims || dims > max_dims) return false;
    for (std::size_t i = 0; i < dims; ++i)
        if (shape[i] > array.whole[i] || array.offset[i] > array.whole[i] - shape[i]) return false;
    return true;
}

/// Elements of a part of an array that fits into memory.
inline std::uint64_t box_elements(std::span<const std::uint64_t> shape) {
    std::uint64_t count = 1;
    for (std::uint64_t n : shape) count *= n;
    return count;
}

/// The stretches of a part that are contiguous in both arrays, in row-major order.
class BoxRuns {
  public:
    /// Precondition: box_inside() both, and their bytes fit into 64 bits. `unit`: bytes of an element.
    BoxRuns(const BoxPlace &a, const BoxPlace &b, std::span<const std::uint64_t> shape, std::uint64_t unit)
        : shape_(shape), outer_(shape.size()) {
        while (outer_ > 0 && shape[outer_ - 1] == a.whole[outer_ - 1] &&
               shape[outer_ - 1] == b.whole[outer_ - 1])
            --outer_;
        if (outer_ > 0) --outer_;
        a_ = walk_of(a, unit);
        b_ = walk_of(b, unit);
        bytes_ = box_elements(shape.subspan(outer_)) * unit;
        count_ = box_elements(shape) == 0 ? 0 : box_elements(shape.first(outer_));
        left_ = count_ != 0;
    }

    bool done() const noexcept { return !left_; }
    /// The whole part is one stretch.
    bool single() const noexcept { return count_ <= 1; }
    std::uint64_t a() const noexcept { return a_.at; }  ///< first byte of the stretch in the first array
    std::uint64_t b() const noexcept { return b_.at; }  ///< in the second
    std::uint64_t bytes() const noexcept { return bytes_; }
    void next() {
        for (std::size_t i = outer_; i-- > 0; position_[i] = 0) {
            a_.at += a_.step[i];
            b_.at += b_.step[i];
            if (++position_[i] < shape_[i]) return;
            a_.at -= shape_[i] * a_.step[i];
            b_.at -= shape_[i] * b_.step[i];
        }
        left_ = false;
    }
    /// On, or back, to the first stretch that ends behind byte `at` of the first array.
    void skip_to(std::uint64_t at) {
        std::uint64_t first = 0, end = count_;
        while (first < end) {
            std::uint64_t middle = first + (end - first) / 2;
            go_to(middle);
            if (a_.at + bytes_ > at)
                end = middle;
            else
                first = middle + 1;
        }
        left_ = first < count_;
        if (left_) go_to(first);
    }

  private:
    struct Walk {
        std::uint64_t at = 0;
        std::array<std::uint64_t, max_dims> step{};  ///< bytes from one element to the next
    };
    static Walk walk_of(const BoxPlace &array, std::uint64_t unit) {
        Walk walk;
        for (std::size_t i = array.whole.size(); i-- > 0; unit *= array.whole[i]) {
            walk.step[i] = unit;
            walk.at += array.offset[i] * unit;
        }
        return walk;
    }

    void go_to(std::uint64_t number) {
        for (std::size_t i = outer_; i-- > 0; number /= shape_[i]) {
            std::uint64_t steps = number % shape_[i] - position_[i];  // back is on by nearly 2^64
            a_.at += steps * a_.step[i];
            b_.at += steps * b_.step[i];
            position_[i] += steps;
        }
    }

    std::span<const std::uint64_t> shape_;
    std::size_t outer_;  ///< dimensions that are walked through; the others lie in one stretch
    Walk a_, b_;
    std::array<std::uint64_t, max_dims> position_{};
    std::uint64_t bytes_ = 0, count_ = 0;  ///< of one stretch; stretches
    bool left_ = false;
};

}  // namespace dlrover::ckpt
