// SPDX-License-Identifier: Apache-2.0
// A run's place in the order of a lineage's checkpoints: the high half of its terms, which no other run gets
// (docs/format-storage.md, "Claims").
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "base/ids.h"
#include "base/status.h"

namespace dlrover::writer {

/// One run of a group: the same on all its nodes, and nothing else's.
struct RunId {
    std::string text;            ///< what stands in the claim
    std::uint32_t restarts = 0;  ///< Slurm's restart count: the least high half of its terms
};

/// The term that `run` may begin with: above those of everything in the folder but its own, and claimed. The
/// same again for who asks again. Precondition: the folder is there.
Result<std::uint64_t> claim_term(const std::string &folder, const RunId &run);

/// Removes the claims of other runs with a high half below `high`, but for those in `kept`.
Status remove_claims_below(const std::string &folder, std::uint32_t high, const RunId &run,
                           const std::set<std::uint32_t> &kept);

/// "JOB.STEP.RESTARTS" of the run that has these terms; empty: it can not be told.
std::string claimed_by(const std::string &folder, std::uint32_t high);

std::string claim_path(const std::string &folder, std::uint64_t high);

/// That of a checkpoint's term.
std::uint32_t high_half(const CheckpointId &id);

/// ".run-7.claim" -> 7
std::optional<std::uint32_t> parse_claim_name(std::string_view name);

}  // namespace dlrover::writer
