// SPDX-License-Identifier: Apache-2.0
#include "ckpt/mapping.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <span>
#include <string>

#include "ckpt/huge_pages.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

namespace dlrover::ckpt {
namespace {

constexpr std::uint64_t page_bytes = 4096;
constexpr std::uint64_t max_range_bytes = std::uint64_t{1} << 46;
constexpr std::uint64_t populate_part_bytes = std::uint64_t{4} << 20;

Result<std::uint64_t> total_bytes(const std::vector<SegmentGrant> &segments) {
    std::uint64_t total = 0;
    for (const auto &s : segments) {
        if (s.bytes == 0 || s.bytes % page_bytes != 0 || s.bytes > max_range_bytes)
            return Status(Code::corrupt, "the daemon announced a segment of a wrong size");
        total += s.bytes;
        if (total > max_range_bytes) return Status(Code::corrupt, "the daemon announced too much memory");
    }
    if (total == 0) return Status(Code::corrupt, "the daemon announced a slot without memory");
    return total;
}

/// The file's inode, after making sure that no access can run past its end.
Result<std::uint64_t> check_file(const SegmentGrant &segment) {
    struct stat st;
    if (::fstat(segment.fd.get(), &st) != 0) return Status::from_errno("fstat of a segment");
    if (static_cast<std::uint64_t>(st.st_size) < segment.bytes)
        return Status(Code::corrupt, "a segment is shorter than the daemon announced");
    return static_cast<std::uint64_t>(st.st_ino);
}

Status map_segment(std::byte *at, const SegmentGrant &segment, Access access, PageTables page_tables) {
    int protection = access == Access::read_write ? PROT_READ | PROT_WRITE : PROT_READ;
    void *p = ::mmap(at, segment.bytes, protection, MAP_SHARED | MAP_FIXED, segment.fd.get(), 0);
    if (p == MAP_FAILED) return Status::from_errno("mmap of a segment");
    ::madvise(at, segment.bytes, MADV_DONTFORK);
    ask_huge_pages(at, segment.bytes);
    if (page_tables == PageTables::now) populate(at, segment.bytes);
    return {};
}

Result<Mapping> reserve_with_room(std::uint64_t bytes) {
    auto wide = Mapping::reserve(std::max(bytes, std::min(4 * bytes, bytes + (std::uint64_t{64} << 30))));
    return wide.ok() ? std::move(wide) : Mapping::reserve(bytes);
}

/// For kernels before 5.14: what a copy into it would do page by page.
void read_each_page(const std::byte *at, std::uint64_t bytes) noexcept {
    for (std::uint64_t i = 0; i < bytes; i += page_bytes)
        (void)*static_cast<const volatile std::byte *>(at + i);
}

// Measured for 512 MiB: of pages that are there read access brings sixteen at a time, which may be written
// then, in 17 ms; asking to write each takes 45. Of pages that are still to be made asking to write is the
// faster way.
void populate_part(std::byte *at, std::uint64_t bytes) noexcept {
    auto refused = [&](int advice) { return ::madvise(at, bytes, advice) != 0 && errno == EINVAL; };
    if (!has_pages(at, bytes) && !refused(MADV_POPULATE_WRITE)) return;
    // There, mapped to be read, or a kernel before 5.14.
    if (refused(MADV_POPULATE_READ)) read_each_page(at, bytes);
}

}  // namespace

void populate(std::byte *at, std::uint64_t bytes) noexcept {
    for (std::uint64_t i = 0; i < bytes; i += populate_part_bytes)
        populate_part(at + i, std::min(populate_part_bytes, bytes - i));
}

bool has_pages(std::byte *at, std::uint64_t bytes) noexcept {
    std::array<unsigned char, 4096> there;
    for (std::uint64_t i = 0; i < bytes; i += there.size() * page_bytes) {
        std::uint64_t n = std::min(bytes - i, there.size() * page_bytes);
        if (::mincore(at + i, n, there.data()) != 0) return false;
        auto pages = std::span(there).first((n + page_bytes - 1) / page_bytes);
        if (!std::ranges::all_of(pages, [](unsigned char page) { return (page & 1) != 0; })) return false;
    }
    return true;
}

Mapping::~Mapping() {
    if (base_ != nullptr) ::munmap(base_, bytes_);
}

Result<Mapping> Mapping::reserve(std::uint64_t bytes) {
    std::uint64_t wide = bytes + huge_page_bytes;
    void *p = ::mmap(nullptr, wide, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return Status(Code::resource_exhausted, "no address space for a slot");
    auto start = reinterpret_cast<std::uintptr_t>(p);
    std::uintptr_t aligned = (start + huge_page_bytes - 1) & ~(huge_page_bytes - 1);
    if (aligned != start) ::munmap(p, aligned - start);
    std::uintptr_t end = aligned + ((bytes + page_bytes - 1) & ~(page_bytes - 1));
    if (end != start + wide) ::munmap(reinterpret_cast<void *>(end), start + wide - end);
    ::madvise(reinterpret_cast<void *>(aligned), bytes, MADV_DONTFORK);
    return Mapping(reinterpret_cast<std::byte *>(aligned), bytes);
}

Result<Mapping> Mapping::anonymous(std::uint64_t bytes) {
    void *p =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return Status(Code::resource_exhausted, "no memory for the checkpoint's image");
    ::madvise(p, bytes, MADV_DONTFORK);
    return Mapping(static_cast<std::byte *>(p), bytes);
}

Result<Mapping> Mapping::file(int fd, std::uint64_t bytes) {
    void *p = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) return Status::from_errno("mmap of a checkpoint file");
    ::madvise(p, bytes, MADV_DONTFORK);
    return Mapping(static_cast<std::byte *>(p), bytes);
}

Result<Mapping> Mapping::shared(int fd, std::uint64_t bytes) {
    void *p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (p == MAP_FAILED) return Status::from_errno("mmap of shared memory");
    ::madvise(p, bytes, MADV_DONTFORK);
    return Mapping(static_cast<std::byte *>(p), bytes);
}

Result<SegmentRange> SegmentRange::map(std::vector<SegmentGrant> segments, Access access,
                                       PageTables page_tables) {
    SegmentRange range(access);
    DLROVER_TRY(range.update(std::move(segments), page_tables));
    return range;
}

std::size_t SegmentRange::common_prefix(const std::vector<SegmentGrant> &segments) const {
    std::size_t n = 0;
    for (; n < segments.size() && n < held_.size(); ++n) {
        const SegmentGrant &s = segments[n];
        if (s.id != held_[n].id || s.bytes != held_[n].bytes) break;
        if (!s.fd) continue;
        auto inode = check_file(s);
        if (!inode || *inode != held_[n].inode) break;
    }
    return n;
}

bool SegmentRange::same_memory(const SegmentRange &other) const {
    return held_ == other.held_;
}

Status SegmentRange::set_access(Access access) {
    int protection = access == Access::read_write ? PROT_READ | PROT_WRITE : PROT_READ;
    if (::mprotect(range_.base(), bytes_, protection) != 0) return Status::from_errno("mprotect of a slot");
    access_ = access;
    return {};
}

Status SegmentRange::append(const std::vector<SegmentGrant> &segments, std::size_t first,
                            PageTables page_tables) {
    for (std::size_t i = first; i < segments.size(); ++i) {
        auto inode = check_file(segments[i]);
        if (!inode) return inode.take_status();
        DLROVER_TRY(map_segment(range_.base() + bytes_, segments[i], access_, page_tables));
        held_.push_back({segments[i].id, segments[i].bytes, *inode});
        bytes_ += segments[i].bytes;
    }
    return {};
}

Status SegmentRange::update(std::vector<SegmentGrant> segments, PageTables page_tables) {
    auto total = total_bytes(segments);
    if (!total) return total.take_status();
    std::size_t kept = common_prefix(segments);
    if (kept != held_.size() || *total > range_.bytes()) kept = 0;
    if (kept == segments.size()) return {};
    for (std::size_t i = kept; i < segments.size(); ++i)
        if (!segments[i].fd)
            return Status(Code::unavailable, "the daemon did not send a segment's descriptor");
    if (kept == 0) {
        auto range = reserve_with_room(*total);
        if (!range) return range.take_status();
        attached_.reset();
        range_ = std::move(*range);
        held_.clear();
        bytes_ = 0;
    }
    return append(segments, kept, page_tables);
}

}  // namespace dlrover::ckpt
