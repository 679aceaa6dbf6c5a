// SPDX-License-Identifier: Apache-2.0
#include "examples/heat/plate.h"

namespace heat {
namespace {

double initial_heat(std::uint32_t row, std::uint32_t column) {
    std::uint64_t x =
        (std::uint64_t{row} * 0x9e3779b97f4a7c15ULL) ^ (std::uint64_t{column} * 0xc2b2ae3d27d4eb4fULL);
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9ULL;
    x ^= x >> 32;
    return x % 97 == 0 ? 100.0 : static_cast<double>(x % 1000) / 1000.0;
}

}  // namespace

std::uint32_t slab_begin(std::uint32_t size, std::uint32_t rank, std::uint32_t ranks) {
    return static_cast<std::uint32_t>(std::uint64_t{size} * rank / ranks);
}

Plate::Plate(std::uint32_t size, std::uint32_t rank, std::uint32_t ranks)
    : size_(size),
      first_row_(slab_begin(size, rank, ranks)),
      rows_(slab_begin(size, rank + 1, ranks) - first_row_),
      now_(std::size_t{size} * (rows_ + 2)) {
    for (std::uint32_t r = 0; r < rows_; ++r)
        for (std::uint32_t c = 0; c < size_; ++c) row(r)[c] = initial_heat(first_row_ + r, c);
    next_ = now_;
}

void Plate::advance() {
    for (std::uint32_t r = 0; r < rows_; ++r) {
        if (first_row_ + r == 0 || first_row_ + r == size_ - 1) continue;
        const double *up = row(std::int64_t{r} - 1), *here = row(r), *down = row(std::int64_t{r} + 1);
        double *out = &next_[std::size_t{r + 1} * size_];
        out[0] = here[0];
        out[size_ - 1] = here[size_ - 1];
        for (std::uint32_t c = 1; c + 1 < size_; ++c)
            out[c] = here[c] + 0.2 * ((up[c] - here[c]) + (down[c] - here[c]) + (here[c - 1] - here[c]) +
                                      (here[c + 1] - here[c]));
    }
    auto keep_edge = [this](std::uint32_t r) {
        for (std::uint32_t c = 0; c < size_; ++c) next_[std::size_t{r + 1} * size_ + c] = row(r)[c];
    };
    if (first_row_ == 0) keep_edge(0);
    if (first_row_ + rows_ == size_) keep_edge(rows_ - 1);
    now_.swap(next_);
}

std::uint64_t checksum(const void *data, std::size_t bytes) {
    std::uint64_t h = 0xcbf29ce484222325ULL;
    const auto *p = static_cast<const unsigned char *>(data);
    for (std::size_t i = 0; i < bytes; ++i) h = (h ^ p[i]) * 0x100000001b3ULL;
    return h;
}

}  // namespace heat
