// SPDX-License-Identifier: Apache-2.0
#include "writer/tidying.h"

#include <unistd.h>

#include <filesystem>

#include "ckpt/checkpoint_folder.h"
#include "ckpt/removal.h"
#include "ckpt/storage_io.h"
#include "writer/other_runs.h"

namespace dlrover::writer {
namespace {

constexpr std::string_view suspect_suffix = ".suspect";

/// Marks whose data is gone.
Status remove_suspect_marks(const Destination &to) {
    ckpt::CheckpointFolder folder(to.folder);
    std::vector<std::string> gone;
    std::error_code error;
    std::filesystem::directory_iterator it(to.folder, error), end;
    for (; !error && it != end; it.increment(error)) {
        std::string name = it->path().filename().string();
        if (!name.ends_with(suspect_suffix)) continue;
        auto id =
            ckpt::parse_manifest_name(std::string_view(name).substr(0, name.size() - suspect_suffix.size()));
        if (id && ::access(folder.data_folder(*id).c_str(), F_OK) != 0 && errno == ENOENT)
            gone.push_back(it->path().string());
    }
    if (error) return ckpt::file_error("listing of", to.folder, error.value());
    for (const std::string &path : gone)
        if (::unlink(path.c_str()) != 0 && errno != ENOENT) return ckpt::file_error("removal of", path);
    return {};
}

}  // namespace

Status tidy(const Destination &to, const ckpt::CheckpointId &stored, const RunId &run,
            std::vector<ckpt::CheckpointId> in_use, Tidied &done) {
    ckpt::CheckpointFolder folder(to.folder);
    // Whoever still writes the same there finds that it is done (ckpt/storage_writer).
    DLROVER_TRY(ckpt::remove_leftovers(folder.data_folder(stored), ".new-", ckpt::FolderLink::refused));
    DLROVER_TRY(ckpt::remove_leftovers(to.folder, ".new-probe-"));
    auto listing = ckpt::list_checkpoints(to.folder);
    if (!listing) return listing.take_status();
    OtherRuns others = find_other_runs(to.folder, high_half(stored), *listing);
    in_use.insert(in_use.end(), others.spared.begin(), others.spared.end());
    done.text = std::move(others.text);
    for (const ckpt::CheckpointId &id :
         ckpt::checkpoints_to_remove(to.retention, listing->complete, listing->incomplete, in_use)) {
        DLROVER_TRY(folder.remove(id));
        ++done.removed;
    }
    DLROVER_TRY(remove_suspect_marks(to));
    return remove_claims_below(to.folder, high_half(stored), run, others.highs);
}

}  // namespace dlrover::writer
