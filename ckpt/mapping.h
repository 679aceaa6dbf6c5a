// SPDX-License-Identifier: Apache-2.0
// Ranges of memory that a forked child does not get.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace dlrover::ckpt {

/// Owns an address range; unmaps it at the end.
class Mapping {
  public:
    Mapping() noexcept = default;
    Mapping(Mapping &&other) noexcept
        : base_(std::exchange(other.base_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Mapping &operator=(Mapping &&other) noexcept {
        std::swap(base_, other.base_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    ~Mapping();

    /// Address space without memory, aligned to 2 MiB so that segments of huge pages fit.
    static Result<Mapping> reserve(std::uint64_t bytes);
    /// Zeroed private memory.
    static Result<Mapping> anonymous(std::uint64_t bytes);
    /// A file, read-only.
    static Result<Mapping> file(int fd, std::uint64_t bytes);
    /// A memfd, shared and writable.
    static Result<Mapping> shared(int fd, std::uint64_t bytes);

    std::byte *base() const noexcept { return base_; }
    std::uint64_t bytes() const noexcept { return bytes_; }

  private:
    Mapping(std::byte *base, std::uint64_t bytes) noexcept : base_(base), bytes_(bytes) {}
    std::byte *base_ = nullptr;
    std::uint64_t bytes_ = 0;
};

enum class Access { read_only, read_write };
enum class PageTables { now, later };

/// Page tables for memory that is mapped from a memfd, and pages where there are none yet. A failure costs
/// faults later.
void populate(std::byte *at, std::uint64_t bytes) noexcept;
/// Whether all pages of [at, at + bytes) have memory, whoever gave it to them. `at`: a page's first byte.
bool has_pages(std::byte *at, std::uint64_t bytes) noexcept;

/// A segment as the daemon names it; the descriptor is none when it was sent before.
struct SegmentGrant {
    std::uint64_t id = 0, bytes = 0;
    UniqueFd fd;
};

/// Segments mapped one after the other.
class SegmentRange {
  public:
    /// Maps `segments`, all with descriptors. Their files must be at least as long as announced.
    static Result<SegmentRange> map(std::vector<SegmentGrant> segments, Access access,
                                    PageTables page_tables = PageTables::now);
    /// Makes this range hold `segments`; where they only add to what it has (same ids, lengths and files),
    /// that stays mapped where it is, and as it is. unavailable: a descriptor that is needed did not come;
    /// the range is as it was. After any other failure it may be empty.
    Status update(std::vector<SegmentGrant> segments, PageTables page_tables = PageTables::now);

    /// Fails where writing is wanted and the descriptors were read-only.
    Status set_access(Access access);
    Access access() const noexcept { return access_; }
    /// The same files in the same order: what was written through one is read through the other.
    bool same_memory(const SegmentRange &other) const;

    std::byte *base() const noexcept { return range_.base(); }
    std::uint64_t bytes() const noexcept { return bytes_; }
    /// Something that must end before the memory is unmapped: it is let go of first. Growing in place keeps
    /// it.
    std::shared_ptr<void> &attached() noexcept { return attached_; }

  private:
    struct Held {
        std::uint64_t id = 0, bytes = 0, inode = 0;
        friend bool operator==(const Held &, const Held &) = default;
    };
    explicit SegmentRange(Access access) noexcept : access_(access) {}
    std::size_t common_prefix(const std::vector<SegmentGrant> &segments) const;
    Status append(const std::vector<SegmentGrant> &segments, std::size_t first, PageTables page_tables);

    Access access_;
    Mapping range_;  ///< with room to grow
    std::uint64_t bytes_ = 0;
    std::vector<Held> held_;
    std::shared_ptr<void> attached_;  ///< the last member: goes first
};

}  // namespace dlrover::ckpt
