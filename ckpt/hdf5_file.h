// SPDX-License-Identifier: Apache-2.0
// Every call to HDF5 is behind this header.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "base/status.h"
#include "base/unique_fd.h"
#include "ckpt/dtype.h"

namespace dlrover::ckpt {

using Shape = std::span<const std::uint64_t>;

/// Text must be UTF-8 without NUL bytes.
struct Hdf5Attribute {
    const char *name;
    std::variant<std::uint64_t, std::string_view, Shape> value;
};
using Hdf5Attributes = std::span<const Hdf5Attribute>;

/// A dataset of another file that fills a part of a virtual one.
struct Hdf5Piece {
    std::string file;  ///< relative to the folder of the virtual dataset's file
    std::string path;
    Shape offset, shape;  ///< in the virtual dataset; elements
};

/// The element type's name in the attribute `dtype`: numpy's or ml_dtypes'.
const char *dtype_name(DType type) noexcept;

class Hdf5Group;
class Hdf5Parts;
struct Hdf5TypeBytes;

/// An HDF5 file that is made in memory: only its metadata takes room there, the datasets are holes. It holds
/// no times: the same calls make the same bytes. Any thread may make one; HDF5 has one global state, so they
/// take turns: create() and open() wait until nobody else's is being made. A thread makes one at a time.
class Hdf5File {
  public:
    /// `user_block_bytes`: left free at the start; 0, or a power of two from 512. `objects`: about how many
    /// it will have.
    static Result<Hdf5File> create(std::uint64_t user_block_bytes, std::uint64_t objects);
    /// Goes on with a file that finish() handed over, or with a copy of it.
    static Result<Hdf5File> open(UniqueFd memory);
    Hdf5File(Hdf5File &&other) noexcept;
    Hdf5File &operator=(Hdf5File &&) = delete;
    ~Hdf5File();

    Status add_group(const std::string &path);
    /// For a group that is put together without HDF5 (hdf5_group.h).
    Result<Hdf5TypeBytes> type_bytes();
    /// What HDF5 adds from now on lies at `offset` or behind: what is before it is the caller's. Nothing but
    /// what create() made may be there yet.
    Status skip(std::uint64_t from, std::uint64_t offset);
    /// `group`, finished, lies in what was skipped.
    Status add_made_group(const char *name, const Hdf5Group &group);
    /// On the root group.
    Status add_attributes(Hdf5Attributes attributes);
    /// Contiguous, at its final place. Returns the offset of its first byte in the file, a multiple of 4096
    /// from 64 KiB on; 0 where it has no bytes.
    Result<std::uint64_t> add_dataset(const std::string &path, DType type, Shape shape,
                                      Hdf5Attributes attributes);
    /// A scalar text of `bytes` bytes > 0, UTF-8. Returns its offset.
    Result<std::uint64_t> add_text(const std::string &path, std::uint64_t bytes);
    /// At least one dimension. What no piece fills reads as zero, and so does a piece whose file is missing.
    Status add_virtual(const std::string &path, DType type, Shape shape, std::span<const Hdf5Piece> pieces,
                       Hdf5Attributes attributes);
    /// A name for an object of another file. Reading it fails where the file is missing.
    Status add_link(const std::string &path, const std::string &file, const std::string &target);

    /// Closes the file and hands over its memory, a memfd as long as the file.
    Result<UniqueFd> finish();

  private:
    Hdf5File(std::unique_lock<std::mutex> turn, UniqueFd memory, std::int64_t file);
    Result<std::uint64_t> create_dataset(const std::string &path, std::int64_t type, std::int64_t space,
                                         Hdf5Attributes attributes);

    std::unique_lock<std::mutex> turn_;  ///< held until finish()
    UniqueFd memory_;
    std::int64_t file_;
    std::unique_ptr<Hdf5Parts> parts_;
};

}  // namespace dlrover::ckpt
