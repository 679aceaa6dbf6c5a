// SPDX-License-Identifier: Apache-2.0
// What can be said of the checkpoints of a lineage without reading their data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/ckpt_places.h"

namespace dlrover::cli {

enum class Standing {
    complete,
    incomplete,  ///< no manifest: being written, or left over
    suspect,     ///< complete, set aside by a rollback
    damaged,     ///< the manifest is not valid, or a file of it is missing or has another length
};
const char *standing_name(Standing standing) noexcept;

struct CheckpointSummary {
    ckpt::CheckpointId id;
    Standing standing = Standing::complete;
    bool newest = false;      ///< of the complete ones
    std::uint64_t ranks = 0;  ///< of an incomplete one: files that are there
    std::uint64_t bytes = 0;
    std::int64_t written_s = 0;  ///< since 1970; 0: unknown
    std::string why;             ///< what is wrong
};

struct LineageSummary {
    std::string folder;
    std::string lineage;                         ///< empty: no manifest says it
    std::vector<CheckpointSummary> checkpoints;  ///< newest first
};

/// Looks at names, lengths and manifests.
LineageSummary survey_lineage(const LineageFolder &folder);

/// The newest complete one that is not damaged as far as that tells: what a job goes on from.
std::optional<ckpt::CheckpointId> newest_whole(const LineageFolder &folder);

/// "5 min 20 s"; "-" where written_s is 0.
std::string age_text(std::int64_t written_s, std::int64_t now_s);
std::string lineages_text(const std::vector<LineageSummary> &lineages, std::int64_t now_s);
std::string lineages_json(const std::vector<LineageSummary> &lineages);

}  // namespace dlrover::cli
