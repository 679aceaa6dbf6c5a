// SPDX-License-Identifier: Apache-2.0
// Slurm's compact lists of node names: "rack[1-2]n[01-04,7],login". The text may come from a user: everything
// is bounded.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace dlrover {

inline constexpr std::size_t max_host_name_bytes = 255;
inline constexpr std::size_t max_hosts = 65536;

/// Names in the list's order. A number is padded to the width of its range's first bound. invalid_argument:
/// not a host list; resource_exhausted: more than `limit` names.
Result<std::vector<std::string>> expand_hostlist(std::string_view text, std::size_t limit = max_hosts);

/// The inverse, in the given order; only neighbours that count up by one are joined: {n1,n2,n3,x} ->
/// "n[1-3],x".
std::string compress_hostlist(std::span<const std::string> names);

}  // namespace dlrover
