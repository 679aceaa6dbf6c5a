// SPDX-License-Identifier: Apache-2.0
// A group with its datasets as HDF5's file format has them, put together here: HDF5 takes 35 us of CPU to
// note a dataset, this 2 us. Uses the oldest layouts of the format (symbol table, object headers of version
// 1), which every HDF5 reads and which hold no checksums or times.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/hdf5_file.h"

namespace dlrover::ckpt {

/// A dataset of a group that is made at once.
struct Hdf5Dataset {
    std::string_view name;  ///< not empty, no '/' and no NUL byte
    DType type;
    Shape shape;
    std::uint64_t offset, bytes;  ///< where it is in the file; without bytes it has no place
    Hdf5Attributes attributes;
};

/// What HDF5's format calls datatype messages, as H5Tencode makes them.
struct Hdf5TypeBytes {
    std::map<DType, std::vector<std::uint8_t>> of;
    std::vector<std::uint8_t> text;  ///< of variable length, in a file
};

/// Grows in memory as one stretch of the file.
class Hdf5Group {
  public:
    /// `offset`: of its first byte in the file, behind the user block; both are multiples of 8. `types`
    /// outlives it and knows UInt64 and every type that is added.
    Hdf5Group(std::uint64_t offset, std::uint64_t user_block_bytes, const Hdf5TypeBytes &types)
        : offset_(offset), base_(offset - user_block_bytes), types_(types) {}

    /// Names differ.
    void add(const Hdf5Dataset &dataset);
    /// The last call: now it is whole.
    void finish();

    std::uint64_t offset() const noexcept { return offset_; }
    std::span<const std::uint8_t> bytes() const noexcept { return bytes_; }
    /// Of the group itself, after finish(): as HDF5 counts, from the end of the user block.
    std::uint64_t address() const noexcept { return address_; }

  private:
    struct Member {
        std::string name;
        std::uint64_t header;       ///< address of its object header
        std::uint64_t name_at = 0;  ///< in the group's heap of names
    };
    /// A node of the tree over the names, or what lies below its lowest level.
    struct Node {
        std::uint64_t address, last_name;
    };

    std::uint64_t here() const noexcept { return base_ + bytes_.size(); }
    void put(std::uint64_t value, std::size_t bytes);
    void put(std::string_view text) { bytes_.insert(bytes_.end(), text.begin(), text.end()); }
    void put(std::span<const std::uint8_t> raw) { bytes_.insert(bytes_.end(), raw.begin(), raw.end()); }
    void fill_up();  ///< to a multiple of 8
    void set(std::size_t at, std::uint64_t value, std::size_t bytes);

    std::size_t begin_header(std::uint64_t links);
    void end_header(std::size_t at, std::uint64_t messages);
    std::size_t begin_message(std::uint64_t kind, std::uint64_t flags);
    void end_message(std::size_t at);
    void put_space(Shape shape);
    void put_attribute(const Hdf5Attribute &attribute);
    void put_text(std::string_view text);
    void open_texts(std::size_t room);
    void close_texts();

    std::uint64_t put_names();
    std::vector<Node> put_symbols();
    std::vector<Node> put_level(const std::vector<Node> &below, std::uint64_t level);

    const std::uint64_t offset_, base_;
    const Hdf5TypeBytes &types_;
    std::vector<std::uint8_t> bytes_;
    std::vector<Member> members_;
    /// The collection of texts that is being filled: where in bytes_ it starts, its next free byte, its end.
    std::size_t texts_ = 0, texts_at_ = 0, texts_end_ = 0;
    std::uint64_t text_number_ = 0;
    std::uint64_t address_ = 0;
};

}  // namespace dlrover::ckpt
