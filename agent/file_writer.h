// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "agent/aside.h"
#include "base/unique_fd.h"

namespace dlrover::agent {

/// A file that is opened and written beside the loop. Thread: the loop's.
class FileWriter {
  public:
    static constexpr std::size_t default_limit_bytes = std::size_t{1} << 20;
    struct Opened {
        UniqueFd fd;
        std::string path;
    };
    /// Called once, beside the loop; owns what it uses. Without a descriptor everything is dropped.
    using Open = std::function<Opened()>;

    FileWriter(Loop &loop, Open open, std::size_t limit_bytes = default_limit_bytes);
    FileWriter(Loop &loop, UniqueFd file, std::size_t limit_bytes = default_limit_bytes);
    /// What was taken is still written, while this process lives (Aside::wait_for_all).
    ~FileWriter();
    FileWriter(const FileWriter &) = delete;
    FileWriter &operator=(const FileWriter &) = delete;

    /// Takes all of it, and never waits.
    void write(std::string_view data);
    /// Nothing more should be written for now: `limit_bytes` or more wait for the file.
    bool is_full() const;
    /// Nothing waits to be written.
    bool is_idle() const;
    /// Whether it is known by now if the file can be opened.
    bool is_tried() const;
    /// Empty while the file was not opened.
    std::string path() const;
    /// What the file did not take: it could not be opened, or a write has failed.
    std::uint64_t dropped_bytes() const;

  private:
    struct State;

    std::shared_ptr<State> state_;
    std::size_t limit_;
    Aside aside_;
};

}  // namespace dlrover::agent
