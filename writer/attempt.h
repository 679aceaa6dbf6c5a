// SPDX-License-Identifier: Apache-2.0
// The standard library throws where memory or threads run out; here that is a failure like any other.
#pragma once

#include <exception>
#include <string>

#include "base/status.h"

namespace dlrover::writer {

/// work(), which returns a Result<T>.
template <typename T, typename Work>
Result<T> attempt(Work work) {
    try {
        return work();
    } catch (const std::exception &reason) {
        return Status(Code::unavailable,
                      std::string("the writer lacks memory or threads (") + reason.what() + ")");
    }
}

}  // namespace dlrover::writer
