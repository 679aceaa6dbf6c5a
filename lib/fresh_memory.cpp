// SPDX-License-Identifier: Apache-2.0
#include "lib/fresh_memory.h"

#include <algorithm>

#include "ckpt/mapping.h"

namespace dlrover::lib {
namespace {

constexpr std::uint64_t part_bytes = std::uint64_t{2} << 20;  // a huge page, which no two threads make then

}  // namespace

FreshMemory::FreshMemory(std::span<std::byte> memory)
    : memory_(memory),
      made_(std::make_unique<std::atomic<bool>[]>((memory.size() + part_bytes - 1) / part_bytes)) {}

void FreshMemory::touch(const std::byte *at, std::uint64_t bytes) noexcept {
    if (bytes == 0) return;
    auto first = static_cast<std::uint64_t>(at - memory_.data());
    for (std::uint64_t part = first / part_bytes; part * part_bytes < first + bytes; ++part) {
        if (made_[part].exchange(true, std::memory_order_relaxed)) continue;
        auto pages = memory_.subspan(part * part_bytes);
        ckpt::populate(pages.data(), std::min<std::uint64_t>(pages.size(), part_bytes));
    }
}

}  // namespace dlrover::lib
