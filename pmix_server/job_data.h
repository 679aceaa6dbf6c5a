// SPDX-License-Identifier: Apache-2.0
// What a namespace tells the programs in it: keys and values, from the world. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "pmix_server/world.h"

namespace dlrover::pmix {

struct JobDatum {
    /// How PMIx wants the text.
    enum class Form : std::uint8_t { plain, node_map, process_map };
    struct RankNumber {
        std::uint32_t rank;
        friend bool operator==(RankNumber, RankNumber) = default;
    };
    struct Yes {
        friend bool operator==(Yes, Yes) = default;
    };
    using Value =
        std::variant<std::uint32_t, std::uint16_t, std::uint64_t, double, RankNumber, Yes, std::string>;

    const char *key;  ///< one of PMIx's
    Value value;
    Form form = Form::plain;
};

struct JobData {
    std::vector<JobDatum> job;
    std::vector<std::vector<JobDatum>> ranks;  ///< of each, its own number first
};

/// `sessions`: a folder for the files of the ranks' own libraries, which somebody else removes in the end;
/// they make it themselves.
JobData make_job_data(const World &world, const std::string &sessions);

/// As in DLROVER_GENERATION.
std::string generation_text(const World &world);
/// What dlrover_pmix.h has names for; none: it has none.
std::optional<JobDatum> world_datum(const World &world, std::string_view key);

}  // namespace dlrover::pmix
