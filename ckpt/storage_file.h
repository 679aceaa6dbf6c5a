// SPDX-License-Identifier: Apache-2.0
// Reader of one rank's file on storage. Needs no HDF5.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "ckpt/box_runs.h"
#include "ckpt/object_table.h"
#include "ckpt/storage_header.h"

namespace dlrover::ckpt {

/// What a manifest says of one rank's file: it names every byte of it.
struct RankFile {
    Rank rank;
    std::uint64_t file_bytes = 0;
    std::uint64_t table_xxh3 = 0;
    std::uint64_t header_xxh3 = 0;
    friend bool operator==(const RankFile &, const RankFile &) = default;
};

/// Told of how many bytes were read, as work goes on.
using ReadWatch = std::function<void(std::uint64_t bytes)>;

/// An open file, its table and ledger verified. Trusts no length in it. Reading from several threads at once
/// is allowed.
class StorageFile {
  public:
    /// corrupt: cut short, altered, or none of ours, also when it was read once more. The chunks' bytes are
    /// not read.
    static Result<StorageFile> open(const std::string &path);

    ObjectIdentity identity() const { return table_.identity(); }
    const ObjectTableView &table() const noexcept { return table_; }
    std::span<const std::uint8_t> ledger() const noexcept { return ledger_; }
    std::span<const std::uint8_t> table_bytes() const noexcept { return table_bytes_; }
    RankFile summary() const;
    /// Whether the chunk's bytes are in this file (replica 0). Precondition: index < table().count().
    bool stored(std::uint64_t index) const { return places_[index] != not_stored; }

    /// The whole chunk, verified. Precondition: stored, out.size() == its bytes.
    Status read_chunk(std::uint64_t index, std::span<std::byte> out) const;
    /// The elements [offset, offset + shape) of the chunk (its own coordinates), row-major and contiguous.
    /// Not verified. invalid_argument: not stored, outside the chunk, or out has another size.
    Status read_part(std::uint64_t index, std::span<const std::uint64_t> offset,
                     std::span<const std::uint64_t> shape, std::span<std::byte> out) const;
    /// The same into a place of a larger array.
    Status read_part_into(std::uint64_t index, std::span<const std::uint64_t> offset,
                          std::span<const std::uint64_t> shape, const BoxPlace &to,
                          std::span<std::byte> out) const;
    /// Bytes [at, at + out.size()) of the chunk, not verified. Precondition: stored, inside the chunk.
    Status read_bytes(std::uint64_t index, std::uint64_t at, std::span<std::byte> out) const;
    /// The next read of the chunk is of the file, not of this node's page cache. Precondition: stored.
    void forget(std::uint64_t index) const;
    /// The sentence for a chunk whose bytes do not have its checksum.
    Status wrong_chunk(std::uint64_t index) const;
    /// Every byte of the file against its checksum.
    Status verify() const;
    /// The same, to the end: one sentence for each chunk that is wrong. Empty: the file is whole.
    std::vector<Status> damage(const ReadWatch &watch = {}) const;

    /// Gives the descriptor back; what was read so far stays. reopen() before the next read.
    void close() noexcept { fd_.reset(); }
    bool is_open() const noexcept { return static_cast<bool>(fd_); }
    /// corrupt: another file is there now.
    Status reopen();

  private:
    StorageFile() = default;
    Status read_frame();
    Status check_places();
    Status verify_chunk(std::uint64_t index, const ReadWatch &watch) const;
    Status verify_rest(const ReadWatch &watch) const;

    UniqueFd fd_;
    std::string path_;
    StorageHeader header_{};
    std::uint64_t header_xxh3_ = 0;
    std::vector<std::uint8_t> table_bytes_, ledger_;
    std::vector<std::uint64_t> places_;
    std::vector<Extent> gaps_;
    ObjectTableView table_;
};

}  // namespace dlrover::ckpt
