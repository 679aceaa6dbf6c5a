// SPDX-License-Identifier: Apache-2.0
// The text that makes a checkpoint on storage complete: every rank's file and its checksums. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "ckpt/storage_file.h"
#include "ckpt/storage_name.h"

namespace dlrover::ckpt {

inline constexpr std::uint32_t max_manifest_ranks = 1u << 20;
inline constexpr std::size_t max_manifest_bytes = std::size_t{256} << 20;
inline constexpr std::size_t max_lineage_bytes = 4096;

/// Length and checksum (as of a chunk) of a whole file.
struct FileSum {
    std::uint64_t bytes = 0, xxh3 = 0;
    friend bool operator==(const FileSum &, const FileSum &) = default;
};

struct Manifest {
    CheckpointId id;
    std::string lineage;
    std::optional<FileSum> index;  ///< none: the checkpoint has no index of global tensors
    std::vector<RankFile> ranks;   ///< ranks[i].rank is i; at least one
    friend bool operator==(const Manifest &, const Manifest &) = default;
};

/// JSON, one line per rank; the last line is a checksum of the lines before. invalid_argument: a lineage that
/// is no UTF-8 or too long, ranks that are not 0, 1, 2, …
Result<std::string> encode_manifest(const Manifest &manifest);
/// Takes what encode_manifest() makes and nothing else. corrupt, unsupported (another version).
Result<Manifest> decode_manifest(std::string_view text);

}  // namespace dlrover::ckpt
