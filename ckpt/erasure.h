// SPDX-License-Identifier: Apache-2.0
// The code behind rs:k+m: parities of several objects, any k of the k+m parts give all (GF(2^8), by ISA-L).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace dlrover::ckpt {

inline constexpr unsigned max_code_data = 32, max_code_parity = 8;

/// Parts are numbered: 0 to data - 1 are the objects, `parity` more follow.
struct CodeShape {
    unsigned data = 0, parity = 0;
    unsigned parts() const noexcept { return data + parity; }
};

/// Each of the `given` parts times its factor, summed up, is the part `target`; none given: all objects.
/// With one object each parity is a copy of it, and the first parity of several is their XOR.
/// invalid_argument: there is no such code or part, or not as many different ones are given as it has
/// objects.
Result<std::vector<std::uint8_t>> code_factors(CodeShape shape, unsigned target,
                                               const std::vector<std::uint16_t> &given);

/// sum += factor x source, byte by byte. Precondition: sum is as long as source.
void fold_bytes(std::span<std::byte> sum, std::span<const std::byte> source, std::uint8_t factor);

}  // namespace dlrover::ckpt
