// SPDX-License-Identifier: Apache-2.0
// Numbers in PMIx's values: programs take whichever type of C they like.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>

#include "pmix_server/pmix_api.h"

namespace dlrover::pmix {

/// The largest that there is stands for what is larger. None: it is no whole number.
std::optional<std::int64_t> whole_number(const pmix_value_t &value);

/// PMIX_TIMEOUT, of those that say it the first; 2^31 - 1 seconds stand for more. None: nobody says one above
/// 0.
std::optional<std::chrono::seconds> timeout_in(std::span<const pmix_info_t> infos);

}  // namespace dlrover::pmix
