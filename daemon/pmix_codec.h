// SPDX-License-Identifier: Apache-2.0
// What daemons say to each other for their dlrover-pmixds <-> bytes (proto/pmix.fbs, Word).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "proto/frame.h"

namespace dlrover::daemon {

struct PmixWord {
    GenerationId generation;
    /// A dlrover-pmixd's, at most max_parcel_bytes; none: on the sender's node there is none for that
    /// generation.
    std::vector<std::uint8_t> bytes;
    friend bool operator==(const PmixWord &, const PmixWord &) = default;
};

inline constexpr std::size_t max_parcel_bytes = std::size_t{96} << 10;

/// Precondition: at most max_parcel_bytes.
proto::Bytes encode_pmix_word(const PmixWord &word);
/// corrupt: the bytes do not verify, or a value is out of range.
Result<PmixWord> decode_pmix_word(std::span<const std::uint8_t> bytes);

}  // namespace dlrover::daemon
