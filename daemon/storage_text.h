// SPDX-License-Identifier: Apache-2.0
// Parts of sentences about checkpoints on storage.
#pragma once

#include <string>

#include "base/ids.h"

namespace dlrover::daemon {

/// A process of the user has written it.
inline std::string bounded(const std::string &text) {
    constexpr std::size_t max_text_bytes = 1024;
    return text.substr(0, max_text_bytes);
}

inline std::string step_text(const CheckpointId &id) {
    return "step " + std::to_string(id.step.value());
}

}  // namespace dlrover::daemon
