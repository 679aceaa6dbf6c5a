// SPDX-License-Identifier: Apache-2.0
#include "ckpt/segment.h"

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <string>

#include "ckpt/huge_pages.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace dlrover::ckpt {
namespace {

constexpr std::uint64_t chunk_bytes = 64ull << 20;
/// Pages of that size, also where the system's usual huge ones have 1 GiB.
constexpr unsigned huge_page_flags = MFD_HUGETLB | 21u << 26;

/// The policy is the file's. Where the system knows none, it has one kind of memory.
void prefer_node(int fd, std::uint64_t bytes, unsigned node) {
    constexpr unsigned word_bits = 8 * sizeof(unsigned long);
    unsigned long mask[16] = {};
    if (node >= word_bits * std::size(mask)) return;
    mask[node / word_bits] = 1ul << node % word_bits;
    void *at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return;
    ::syscall(SYS_mbind, at, bytes, MPOL_PREFERRED, mask, word_bits * std::size(mask), 0);
    ::munmap(at, bytes);
}

UniqueFd create_file(const char *name, std::uint64_t bytes, unsigned flags) {
    UniqueFd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
    if (fd && ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) fd.reset();
    return fd;
}

/// The kernel sets as many of the huge pages aside as are mapped, for the file and not for the mapping. To
/// zero them takes seconds; to have them does not.
bool reserve(int fd, std::uint64_t bytes) {
    void *at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) return false;
    ::munmap(at, bytes);
    return true;
}

Status populate(int fd, std::uint64_t offset, std::uint64_t bytes) {
    void *at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
    if (at == MAP_FAILED) return Status::from_errno("mmap of a segment");
    ask_huge_pages(at, bytes);
    Status status;
    if (::madvise(at, bytes, MADV_POPULATE_WRITE) != 0) {
        // Before Linux 5.14. It leaves what is there alone, and says when there is no memory.
        bool done =
            errno == EINVAL && ::fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0;
        if (!done) status = Status::from_errno("filling a segment");
    }
    ::munmap(at, bytes);
    return status;
}

}  // namespace

Result<UniqueFd> create_segment(const char *name, std::uint64_t bytes, SegmentOptions options) {
    if (bytes == 0 || bytes > max_segment_bytes)
        return Status(Code::invalid_argument, "a segment of " + std::to_string(bytes) + " bytes");
    UniqueFd fd;
    if (options.huge_pages && bytes % huge_page_bytes == 0) fd = create_file(name, bytes, huge_page_flags);
    // A page that is missing when it is touched would be a SIGBUS.
    if (fd && !reserve(fd.get(), bytes)) fd.reset();
    if (!fd) fd = create_file(name, bytes, 0);
    if (!fd) return Status::from_errno("memfd_create");
    if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return Status::from_errno("sealing a segment");
    if (options.numa_node) prefer_node(fd.get(), bytes, *options.numa_node);
    return fd;
}

std::uint64_t held_bytes(int segment) {
    struct stat st {};
    return ::fstat(segment, &st) == 0 ? static_cast<std::uint64_t>(st.st_blocks) * 512 : 0;
}

bool has_all_pages(int segment, std::uint64_t bytes) {
    return held_bytes(segment) >= bytes;
}

std::uint64_t memory_available_bytes() {
    // Opened once: somebody who has used up the descriptors must not make it look as if there were no memory.
    static const UniqueFd file(::open("/proc/meminfo", O_RDONLY | O_CLOEXEC));
    std::array<char, 1024> text;
    ssize_t n = ::pread(file.get(), text.data(), text.size() - 1, 0);
    text[static_cast<std::size_t>(std::max<ssize_t>(n, 0))] = '\0';
    const char *line = std::strstr(text.data(), "MemAvailable:");
    unsigned long long kib = 0;
    return line && std::sscanf(line, "MemAvailable: %llu kB", &kib) == 1 ? kib * 1024 : 0;
}

Status room_above_floor(std::uint64_t floor_bytes, std::uint64_t more_bytes) {
    if (memory_available_bytes() >= floor_bytes + more_bytes) return {};
    return Status(Code::resource_exhausted, "the node's memory is at its floor");
}

Prefaulter::Prefaulter(Room room) : room_(std::move(room)), thread_([this] { run(); }) {}

Prefaulter::Prefaulter(std::uint64_t floor_bytes)
    : Prefaulter(Room([floor_bytes](std::uint64_t more) { return room_above_floor(floor_bytes, more); })) {}

Prefaulter::~Prefaulter() {
    {
        std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    thread_.join();
}

void Prefaulter::add(UniqueFd segment, std::uint64_t bytes, std::shared_ptr<std::atomic<bool>> cancelled,
                     Progress progress) {
    {
        std::lock_guard lock(mutex_);
        tasks_.push_back({std::move(segment), bytes, std::move(cancelled), std::move(progress), {}});
    }
    wake_.notify_one();
}

void Prefaulter::discard(UniqueFd segment, std::uint64_t bytes, std::function<void()> gone) {
    {
        std::lock_guard lock(mutex_);
        tasks_.push_back({std::move(segment), bytes, nullptr, nullptr, std::move(gone)});
    }
    wake_.notify_one();
}

std::size_t Prefaulter::waiting() const {
    std::lock_guard lock(mutex_);
    return tasks_.size();
}

void Prefaulter::empty(const Task &task) {
    (void)::fallocate(task.segment.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                      static_cast<off_t>(task.bytes));
    if (task.gone) task.gone();
}

void Prefaulter::run() {
    for (;;) {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
        if (stopping_) return;
        Task task = std::move(tasks_.front());
        tasks_.pop_front();
        lock.unlock();
        if (task.progress)
            fill(task);
        else
            empty(task);
    }
}

void Prefaulter::fill(Task &task) {
    Report report;
    auto begin = std::chrono::steady_clock::now();
    while (report.bytes < task.bytes && !stopping_ && !*task.cancelled) {
        std::uint64_t bytes = std::min(chunk_bytes, task.bytes - report.bytes);
        report.status = room_(bytes);
        if (report.status.ok()) report.status = populate(task.segment.get(), report.bytes, bytes);
        if (!report.status.ok()) break;
        report.bytes += bytes;
        report.busy =
            std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begin);
    }
    report.done = true;
    if (!stopping_ && !*task.cancelled) task.progress(std::move(report));
}

}  // namespace dlrover::ckpt
