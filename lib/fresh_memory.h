// SPDX-License-Identifier: Apache-2.0
// Memory of a slot that nobody has written before: pages and page tables are made where and when the copy
// comes.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace dlrover::lib {

class FreshMemory {
  public:
    /// `memory` begins with a page.
    explicit FreshMemory(std::span<std::byte> memory);
    /// Before [at, at + bytes) of it is written. Any number of threads: each part is made by the first that
    /// comes; who comes meanwhile and does not wait makes single pages as it writes.
    void touch(const std::byte *at, std::uint64_t bytes) noexcept;

  private:
    std::span<std::byte> memory_;
    std::unique_ptr<std::atomic<bool>[]> made_;  ///< of each part
};

}  // namespace dlrover::lib
