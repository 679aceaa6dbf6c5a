// SPDX-License-Identifier: Apache-2.0
// What an HDF5 file's objects are made of: identifiers (hid_t), element types, spaces, plans. A negative
// identifier: it failed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ckpt/hdf5_file.h"

namespace dlrover::ckpt {

/// One identifier of HDF5, closed at the end. Negative: none.
class Hdf5Handle {
  public:
    using Close = int (*)(std::int64_t);
    Hdf5Handle() = default;
    Hdf5Handle(std::int64_t id, Close close) : id_(id), close_(close) {}
    Hdf5Handle(Hdf5Handle &&other) noexcept : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
    Hdf5Handle &operator=(Hdf5Handle &&other) noexcept {
        std::swap(id_, other.id_);
        std::swap(close_, other.close_);
        return *this;
    }
    ~Hdf5Handle() {
        if (id_ >= 0) close_(id_);
    }
    std::int64_t get() const noexcept { return id_; }
    explicit operator bool() const noexcept { return id_ >= 0; }

  private:
    std::int64_t id_ = -1;
    Close close_ = nullptr;
};

/// A scalar where there are no dimensions.
Hdf5Handle make_hdf5_space(Shape shape);
/// UTF-8, filled up with NUL; or of H5T_VARIABLE bytes.
Hdf5Handle make_hdf5_text_type(std::size_t bytes);

/// The type as the format's datatype message.
bool encode_hdf5_type(std::int64_t type, std::vector<std::uint8_t> &message);

/// What the objects of one file have in common, made once: for each anew takes a fifth of HDF5's time. The
/// identifiers stay this object's.
class Hdf5Parts {
  public:
    /// Of a contiguous dataset that has its place at once, is not filled and has no times.
    std::int64_t plan();
    std::int64_t text();    ///< of variable length
    std::int64_t scalar();  ///< space
    std::int64_t vector(std::size_t count);
    /// By the table of docs/format-storage.md.
    std::int64_t type(DType type);
    /// Until the next call: neighbours often have one shape.
    std::int64_t space(Shape shape);
    /// The group `path` of `file`, always the same file. Until the next call.
    std::int64_t group(std::int64_t file, std::string_view path);

  private:
    Hdf5Handle plan_, text_, scalar_, space_, group_;
    std::map<std::size_t, Hdf5Handle> vectors_;
    std::map<DType, Hdf5Handle> types_;
    std::vector<std::uint64_t> shape_;
    std::string group_path_;
};

}  // namespace dlrover::ckpt
