// SPDX-License-Identifier: Apache-2.0
// Memory of the arena: sealed memfds, filled with pages in the background.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "base/status.h"
#include "base/unique_fd.h"

namespace dlrover::ckpt {

inline constexpr std::uint64_t max_segment_bytes = 4ull << 30;

struct SegmentOptions {
    /// Falls back to ordinary pages where too few are reserved. They are set aside at once.
    bool huge_pages = false;
    /// Where its pages are taken as long as there are some, whoever touches them first.
    std::optional<unsigned> numa_node = std::nullopt;
};

/// A memfd of `bytes`, whose size nobody can change any more (the user gets it writable). No page is touched.
Result<UniqueFd> create_segment(const char *name, std::uint64_t bytes, SegmentOptions options = {});

/// What of it has pages, whoever made them; 0 where it can not be told.
std::uint64_t held_bytes(int segment);
/// Whether none is to be taken any more.
bool has_all_pages(int segment, std::uint64_t bytes);

/// MemAvailable of /proc/meminfo, in bytes; 0 when it cannot be read.
std::uint64_t memory_available_bytes();

/// resource_exhausted: with `more_bytes` taken MemAvailable would be below the floor.
Status room_above_floor(std::uint64_t floor_bytes, std::uint64_t more_bytes);

/// A thread that gives segments their pages, one after the other.
class Prefaulter {
  public:
    struct Report {
        std::uint64_t bytes = 0;            ///< ready so far
        std::chrono::microseconds busy{0};  ///< time spent on them
        bool done = false;                  ///< nothing more comes
        Status status;                      ///< resource_exhausted: stopped, there is no room
    };
    /// Runs on the prefaulter's thread: copy and post.
    using Progress = std::function<void(Report)>;

    /// Whether so many bytes more may be taken. Asked before each chunk, on the prefaulter's thread.
    using Room = std::function<Status(std::uint64_t more_bytes)>;

    explicit Prefaulter(Room room);
    /// `floor_bytes`: stop where MemAvailable would fall below.
    explicit Prefaulter(std::uint64_t floor_bytes);
    ~Prefaulter();
    Prefaulter(const Prefaulter &) = delete;
    Prefaulter &operator=(const Prefaulter &) = delete;

    /// Any thread. `cancelled` is read between chunks.
    void add(UniqueFd segment, std::uint64_t bytes, std::shared_ptr<std::atomic<bool>> cancelled,
             Progress progress);

    /// Any thread. Gives the pages of a segment that others may still hold back to the system, after what was
    /// added before; then `gone`, on the prefaulter's thread.
    void discard(UniqueFd segment, std::uint64_t bytes, std::function<void()> gone = {});

    /// Any thread. Segments that wait.
    std::size_t waiting() const;

  private:
    struct Task {
        UniqueFd segment;
        std::uint64_t bytes;
        std::shared_ptr<std::atomic<bool>> cancelled;
        Progress progress;           ///< empty: the pages are given back
        std::function<void()> gone;  ///< then
    };
    void run();
    void fill(Task &task);
    static void empty(const Task &task);

    const Room room_;
    mutable std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<Task> tasks_;
    std::atomic<bool> stopping_{false};
    std::thread thread_;
};

}  // namespace dlrover::ckpt
