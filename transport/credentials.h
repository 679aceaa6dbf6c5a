// SPDX-License-Identifier: Apache-2.0
// Who vouches for a daemon. MUNGE in life (transport/munge_credentials.h), a fake in tests.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace dlrover::transport {

struct Voucher {
    std::vector<std::uint8_t> payload;
    std::uint32_t uid = 0, gid = 0;  ///< of the process that made the credential
};

/// Thread: any, one call at a time; calls block.
class Credentials {
  public:
    virtual ~Credentials() = default;
    /// A text that only uid 0 of this authentication realm can decode, and once on each node.
    virtual Result<std::string> encode(std::span<const std::uint8_t> payload) = 0;
    /// permission_denied: forged, replayed, expired or not for us. unavailable: nobody can tell now.
    virtual Result<Voucher> decode(const std::string &credential) = 0;
};

}  // namespace dlrover::transport
