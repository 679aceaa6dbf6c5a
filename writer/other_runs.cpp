// SPDX-License-Identifier: Apache-2.0
#include "writer/other_runs.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "writer/term_claim.h"

namespace dlrover::writer {
namespace {

using Moment = std::pair<std::int64_t, std::int64_t>;  ///< of the file system's clock

/// None: it is not there. What can not be told is said to be `unknown`.
std::optional<Moment> changed_at(const std::string &path, Moment unknown) {
    struct stat about {};
    if (::lstat(path.c_str(), &about) == 0) return Moment(about.st_mtim.tv_sec, about.st_mtim.tv_nsec);
    if (errno == ENOENT) return std::nullopt;
    return unknown;
}

/// Whether a run that is another one made this while we were there.
class Watch {
  public:
    Watch(const std::string &folder, std::uint32_t own)
        : folder_(folder), own_(own), began_(changed_at(claim_path(folder, own), {INT64_MIN, 0})) {}

    bool made_meanwhile(const ckpt::CheckpointId &id, const std::string &name) const {
        std::uint32_t high = high_half(id);
        if (high >= own_ || !began_) return high > own_;
        auto made = changed_at(folder_ + "/" + name, {INT64_MAX, 0});
        return made && *made > *began_;
    }

  private:
    std::string folder_;
    std::uint32_t own_;
    std::optional<Moment> began_;
};

std::string in_words(const std::string &folder, std::uint32_t own, const std::set<std::uint32_t> &highs) {
    std::vector<std::string> names;
    std::string last = "this run";
    for (std::uint32_t high : highs) {
        std::string name = claimed_by(folder, high);
        if (high > own) last = name.empty() ? "the other" : "run " + name;
        if (!name.empty()) names.push_back(std::move(name));
    }
    std::string who = names.empty() ? "Another run" : names.size() == 1 ? "run " : "runs ";
    for (std::size_t i = 0; i < names.size(); ++i)
        who += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
    return who + (names.empty() ? "" : " (job.step.restarts)") + (names.size() > 1 ? " put" : " puts") +
           " checkpoints of the same lineage into " + folder +
           " at the same time: the newest of each run is kept, and a later start goes on from those of " +
           last + ". Give one of the jobs another --dlrover-name";
}

}  // namespace

OtherRuns find_other_runs(const std::string &folder, std::uint32_t own,
                          const ckpt::CheckpointListing &listing) {
    OtherRuns others;
    Watch watch(folder, own);
    for (const ckpt::CheckpointId &id : listing.complete)  // newest first
        if (!others.highs.contains(high_half(id)) && watch.made_meanwhile(id, ckpt::manifest_name(id))) {
            others.highs.insert(high_half(id));
            others.spared.push_back(id);
        }
    for (const ckpt::CheckpointId &id : listing.incomplete)
        if (watch.made_meanwhile(id, ckpt::checkpoint_folder_name(id))) {
            others.highs.insert(high_half(id));
            others.spared.push_back(id);
        }
    if (!others.highs.empty()) others.text = in_words(folder, own, others.highs);
    return others;
}

}  // namespace dlrover::writer
