// SPDX-License-Identifier: Apache-2.0
// <slurm/spank.h>, whose hook declarations stand outside its own extern "C", made visible in the module.
#pragma once

#pragma GCC visibility push(default)
extern "C" {
#include <slurm/spank.h>
}
#pragma GCC visibility pop

#include <optional>
#include <string>

namespace dlrover::spank {

/// spank_get_item for the items that are one uint32; none where the host refuses.
inline std::optional<std::uint32_t> get_uint32(spank_t handle, spank_item item) {
    std::uint32_t value = 0;
    if (spank_get_item(handle, item, &value) != ESPANK_SUCCESS) return {};
    return value;
}

/// The variable of the step's environment; none where it is not set or longer than `limit` bytes.
std::optional<std::string> get_step_env(spank_t handle, const char *name, std::size_t limit);

}  // namespace dlrover::spank
