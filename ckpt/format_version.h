// SPDX-License-Identifier: Apache-2.0
// What a reader says of a format's version that is not its own.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace dlrover::ckpt {

/// Precondition: `found` differs from `understood`.
inline Status other_version(const std::string &what, std::uint64_t found, std::uint64_t understood) {
    std::string text = what + " is of version " + std::to_string(found) +
                       ", and this dlrover reads version " + std::to_string(understood);
    return Status(Code::unsupported, found > understood ? text + ": a newer one has written it" : text);
}

}  // namespace dlrover::ckpt
