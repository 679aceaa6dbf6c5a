// SPDX-License-Identifier: Apache-2.0
#include "spank_plugin/faults.h"

#include <poll.h>

#include <cstring>
#include <stdexcept>
#include <string_view>

namespace dlrover::spank {
namespace {

char chosen[64];  // "HOOK:KIND"

}  // namespace

void choose_fault(std::span<char *const> words) {
    for (const char *word : words) {
        std::string_view text = word;
        if (!text.starts_with("fault=") || text.size() - 6 >= sizeof chosen) continue;
        std::memcpy(chosen, word + 6, text.size() - 6 + 1);
    }
}

Status inject_fault(const char *hook, std::chrono::milliseconds timeout) {
    std::string_view fault = chosen;
    std::size_t colon = fault.find(':');
    if (colon == std::string_view::npos || fault.substr(0, colon) != hook) return {};
    std::string_view kind = fault.substr(colon + 1);
    if (kind == "throw") throw std::runtime_error("injected exception");
    if (kind == "throw-int") throw 42;
    if (kind == "error") return Status(Code::internal, "injected error");
    if (kind == "hang") ::poll(nullptr, 0, static_cast<int>(timeout.count()) + 1000);
    return {};
}

}  // namespace dlrover::spank
