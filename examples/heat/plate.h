// SPDX-License-Identifier: Apache-2.0
// One rank's rows of the plate and the arithmetic. A cell's value is the same whatever the number of ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace heat {

class Plate {
  public:
    /// Rows [first_row, first_row + rows) of a size × size plate: hot spots on cold ground, edges kept at
    /// their values.
    Plate(std::uint32_t size, std::uint32_t rank, std::uint32_t ranks);

    std::uint32_t size() const { return size_; }
    std::uint32_t first_row() const { return first_row_; }
    std::uint32_t rows() const { return rows_; }
    /// Row of this slab; -1 and rows() are the neighbours' rows.
    double *row(std::int64_t r) { return &now_[static_cast<std::size_t>(r + 1) * size_]; }
    const double *row(std::int64_t r) const { return &now_[static_cast<std::size_t>(r + 1) * size_]; }
    /// One Jacobi step from the halo rows as they are.
    void advance();

  private:
    std::uint32_t size_, first_row_, rows_;
    std::vector<double> now_, next_;
};

/// First row of a rank's slab; the slab ends where the next one begins.
std::uint32_t slab_begin(std::uint32_t size, std::uint32_t rank, std::uint32_t ranks);
/// FNV-1a over the bytes.
std::uint64_t checksum(const void *data, std::size_t bytes);

}  // namespace heat
