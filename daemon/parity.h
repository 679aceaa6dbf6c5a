// SPDX-License-Identifier: Apache-2.0
// Parities of other nodes' objects as this node keeps them: in slots of their own, found by a number that is
// no rank's.
#pragma once

#include <algorithm>
#include <vector>

#include "elastic/types.h"
#include "local_types.h"

namespace dlrover::daemon {

/// A parity, and all that is needed to make one of its objects again. Immutable once sealed.
struct ParityObject {
    std::uint32_t index = 0;
    std::vector<Rank> ranks;                   ///< of the row, in the order of the matrix' columns
    std::vector<proto::local::SealT> objects;  ///< of each rank; the slots mean nothing
    bool to_storage() const {
        return std::ranges::any_of(objects, [](const auto &object) { return object.to_storage; });
    }
};

inline constexpr std::uint32_t parity_bit = 1u << 31;
/// Whose slots are for what comes only to be added to a parity.
inline constexpr Rank passage{~std::uint32_t{0}};

/// Under which the parity of the row that begins with this rank is found.
inline Rank parity_place(std::uint32_t index, Rank first) {
    constexpr std::uint32_t first_bits = 27;
    return Rank(parity_bit | index << first_bits | (first.value() & ((1u << first_bits) - 1)));
}
inline bool is_rank(Rank rank) {
    return (rank.value() & parity_bit) == 0;
}

}  // namespace dlrover::daemon
