// SPDX-License-Identifier: Apache-2.0
// Names of files, folders and HDF5 objects of checkpoints on storage. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/ids.h"

namespace dlrover::ckpt {

using dlrover::CheckpointId;

bool valid_utf8(std::string_view text) noexcept;

/// `text` as one name: UTF-8 stays, but `/`, `%`, control characters, bytes that are no UTF-8 and a leading
/// dot become %XX; empty becomes "%".
std::string escape_name(std::string_view text);
/// The same, at most 200 bytes: a longer one is cut and ends in ~ and its XXH3-64.
std::string escape_file_name(std::string_view text);

/// "step-1200.gen-0.3.2": step 1200 of generation 0.3.2 (restart count, term's low half, number).
std::string checkpoint_folder_name(const CheckpointId &id);
std::string manifest_name(const CheckpointId &id);  ///< with ".manifest" behind
std::optional<CheckpointId> parse_checkpoint_folder_name(std::string_view name);
std::optional<CheckpointId> parse_manifest_name(std::string_view name);
std::string suspect_name(const CheckpointId &id);  ///< a manifest's name with ".suspect" behind
std::optional<CheckpointId> parse_suspect_name(std::string_view name);

std::string rank_file_name(Rank rank);  ///< "rank-7.h5"
inline constexpr char index_file_name[] = "index.h5";

}  // namespace dlrover::ckpt
