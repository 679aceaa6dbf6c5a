// SPDX-License-Identifier: Apache-2.0
// What of a checkpoint's files does not change from step to step: a writer keeps what it made for the last
// checkpoint.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "ckpt/storage_header.h"

namespace dlrover::ckpt {

/// The bytes of a memfd without its holes.
class PackedMemory {
  public:
    static Result<PackedMemory> pack(int memory);
    /// Another memfd of the same length and bytes.
    Result<UniqueFd> unpack() const;
    std::uint64_t packed_bytes() const noexcept {
        return content_.capacity() + parts_.capacity() * sizeof(Extent);
    }

  private:
    std::uint64_t length_ = 0;
    std::vector<Extent> parts_;  ///< one after another in content_
    std::vector<std::byte> content_;
};

/// Everything that a frame follows from, one after another, so that two keys are equal only if all is.
class FrameKey {
  public:
    FrameKey &add(std::uint64_t number);
    FrameKey &add(std::string_view text);
    FrameKey &add(std::span<const std::uint64_t> numbers);
    std::uint64_t bytes() const noexcept { return bytes_.capacity(); }
    friend bool operator==(const FrameKey &, const FrameKey &) = default;

  private:
    std::vector<std::uint8_t> bytes_;
};

/// An HDF5 file to which each step adds what is its own.
struct StorageFrame {
    PackedMemory file;
    std::uint64_t list = 0, checksums = 0;  ///< of a rank's file: where `/places` and `/checksums` are
};

/// Frames of the checkpoints before. Not thread-safe.
class StorageFrames {
  public:
    /// `limit_bytes`: of all; 0 keeps none.
    explicit StorageFrames(std::uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}

    /// A frame that neither this checkpoint nor the one before has used is forgotten when the next begins.
    void begin(const CheckpointId &id);
    /// Null: there is none.
    std::shared_ptr<const StorageFrame> find(const FrameKey &key);
    /// Frames that neither this checkpoint nor the one before has used make room. Where that is not enough it
    /// is not kept: with more ranks than there is room for, those kept go on being of use.
    void keep(FrameKey key, std::shared_ptr<const StorageFrame> frame);

    std::uint64_t bytes() const noexcept { return bytes_; }
    std::size_t count() const noexcept { return frames_.size(); }

  private:
    struct Kept {
        FrameKey key;
        std::shared_ptr<const StorageFrame> frame;
        std::uint64_t bytes, used;
    };
    void forget_last();

    const std::uint64_t limit_bytes_;
    std::uint64_t bytes_ = 0, checkpoints_ = 0;
    CheckpointId current_;
    std::list<Kept> frames_;  ///< the one used last comes first
};

}  // namespace dlrover::ckpt
