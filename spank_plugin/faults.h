// SPDX-License-Identifier: Apache-2.0
// Faults for the tests, in a module of its own (built with -DDLROVER_SPANK_FAULTS): the word fault=HOOK:KIND
// in plugstack.conf. The product has none of it.
#pragma once

#include <chrono>
#include <span>

#include "base/status.h"

namespace dlrover::spank {

#ifdef DLROVER_SPANK_FAULTS
void choose_fault(std::span<char *const> words);
/// Throws, fails or hangs where `hook` is the chosen one. A hang outlasts the timeout.
Status inject_fault(const char *hook, std::chrono::milliseconds timeout);
#else
inline void choose_fault(std::span<char *const>) {}
inline Status inject_fault(const char *, std::chrono::milliseconds) {
    return {};
}
#endif

}  // namespace dlrover::spank
