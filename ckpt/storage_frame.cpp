// SPDX-License-Identifier: Apache-2.0
#include "ckpt/storage_frame.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "ckpt/storage_io.h"

namespace dlrover::ckpt {
namespace {

constexpr char frame_name[] = "a file's frame in memory";
constexpr std::uint64_t kept_checkpoints = 2;

/// The parts of [0, length) that are no holes.
Result<std::vector<Extent>> find_parts(int memory, std::uint64_t length) {
    std::vector<Extent> parts;
    for (std::uint64_t at = 0; at < length;) {
        off_t from = ::lseek(memory, static_cast<off_t>(at), SEEK_DATA);
        if (from < 0 && errno == ENXIO) break;  // nothing but a hole is left
        off_t to = from < 0 ? from : ::lseek(memory, from, SEEK_HOLE);
        if (to < 0) return file_error("search for holes in", frame_name);
        at = std::min(static_cast<std::uint64_t>(to), length);
        parts.push_back({static_cast<std::uint64_t>(from), at - static_cast<std::uint64_t>(from)});
    }
    return parts;
}

}  // namespace

Result<PackedMemory> PackedMemory::pack(int memory) {
    PackedMemory packed;
    auto length = file_size(memory, frame_name);
    if (!length) return length.take_status();
    packed.length_ = *length;
    auto parts = find_parts(memory, *length);
    if (!parts) return parts.take_status();
    packed.parts_ = std::move(*parts);
    std::uint64_t bytes = 0;
    for (const Extent &part : packed.parts_) bytes += part.bytes;
    packed.content_.resize(bytes);
    std::byte *to = packed.content_.data();
    for (const Extent &part : packed.parts_) {
        DLROVER_TRY(read_at(memory, to, part.bytes, part.offset, frame_name));
        to += part.bytes;
    }
    return packed;
}

Result<UniqueFd> PackedMemory::unpack() const {
    UniqueFd memory(::memfd_create("dlrover-frame", MFD_CLOEXEC));
    if (!memory || ::ftruncate(memory.get(), static_cast<off_t>(length_)) != 0)
        return Status::from_errno("memory for an HDF5 file");
    const std::byte *from = content_.data();
    for (const Extent &part : parts_) {
        DLROVER_TRY(write_at(memory.get(), from, part.bytes, part.offset, frame_name));
        from += part.bytes;
    }
    return memory;
}

FrameKey &FrameKey::add(std::uint64_t number) {
    std::size_t at = bytes_.size();
    bytes_.resize(at + sizeof number);
    std::memcpy(bytes_.data() + at, &number, sizeof number);
    return *this;
}

FrameKey &FrameKey::add(std::string_view text) {
    add(text.size());
    bytes_.insert(bytes_.end(), text.begin(), text.end());
    return *this;
}

FrameKey &FrameKey::add(std::span<const std::uint64_t> numbers) {
    add(numbers.size());
    for (std::uint64_t number : numbers) add(number);
    return *this;
}

void StorageFrames::begin(const CheckpointId &id) {
    if (checkpoints_ != 0 && id == current_) return;
    current_ = id;
    ++checkpoints_;
    while (!frames_.empty() && frames_.back().used + kept_checkpoints < checkpoints_) forget_last();
}

std::shared_ptr<const StorageFrame> StorageFrames::find(const FrameKey &key) {
    auto found = std::find_if(frames_.begin(), frames_.end(), [&](auto &kept) { return kept.key == key; });
    if (found == frames_.end()) return nullptr;
    found->used = checkpoints_;
    frames_.splice(frames_.begin(), frames_, found);
    return found->frame;
}

void StorageFrames::keep(FrameKey key, std::shared_ptr<const StorageFrame> frame) {
    std::uint64_t bytes = key.bytes() + frame->file.packed_bytes();
    while (bytes_ + bytes > limit_bytes_ && !frames_.empty() && frames_.back().used + 1 < checkpoints_)
        forget_last();
    if (bytes_ + bytes > limit_bytes_) return;
    frames_.push_front({std::move(key), std::move(frame), bytes, checkpoints_});
    bytes_ += bytes;
}

void StorageFrames::forget_last() {
    bytes_ -= frames_.back().bytes;
    frames_.pop_back();
}

}  // namespace dlrover::ckpt
