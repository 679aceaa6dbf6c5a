// SPDX-License-Identifier: Apache-2.0
// What the daemon says of the group, as programs get it: events, and values that they ask for. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pmix_server/job_data.h"

namespace dlrover::pmix {

/// An event for all ranks of this node.
struct News {
    int code = 0;
    std::vector<JobDatum> values;
    std::optional<std::uint32_t> rank;  ///< that it is about
};

/// None: of a kind that is not known here, or about what is not in this world.
std::optional<News> make_news(const World &world, const proto::local::PmixEventT &event);
/// This generation ends. reason: may be empty.
News end_news(const World &world, const std::string &reason);

/// Whether this is the name of a value for which the daemon has to be asked.
bool is_of_state(std::string_view key);
/// None: `state` has none of that name.
std::optional<JobDatum> state_datum(const proto::local::PmixStateT &state, std::string_view key);

}  // namespace dlrover::pmix
