// SPDX-License-Identifier: Apache-2.0
// How HDF5 reaches a file that lies in a memfd, and what differs between its versions.
#pragma once

#include <cstdint>

namespace dlrover::ckpt {

/// A file access property list of HDF5 (a hid_t, to be closed by H5Pclose) for a file in `fd`, which outlives
/// it: holes stay holes, large datasets start at multiples of 4096, versions from 1.10 on can read it.
/// `objects`: about how many will be added; what HDF5 notes of them lies together. Negative: it failed.
std::int64_t hdf5_memory_access(int fd, std::uint64_t objects);

/// HDF5 leaves what lies between the end of `file` (a hid_t of such a file) and `offset` alone. False: it has
/// gone beyond already.
bool hdf5_memory_skip(std::int64_t file, std::uint64_t from, std::uint64_t offset);

}  // namespace dlrover::ckpt
