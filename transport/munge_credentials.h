// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "transport/credentials.h"

namespace dlrover::transport {

struct MungeOptions {
    std::string socket;             ///< of munged; empty: libmunge's default
    std::uint32_t readable_by = 0;  ///< the uid that may decode; another than 0 is for tests
};

/// Encrypted (never cipher "none") and readable by one uid.
Result<std::unique_ptr<Credentials>> make_munge_credentials(const MungeOptions &options);

}  // namespace dlrover::transport
