// SPDX-License-Identifier: Apache-2.0
// ls, show and verify: what reads and changes nothing.
#include <sys/stat.h>

#include <algorithm>
#include <ctime>
#include <iostream>
#include <map>

#include "base/count_of.h"
#include "base/units.h"
#include "ckpt/storage_name.h"
#include "cli/ckpt_survey.h"
#include "cli/ckpt_view.h"
#include "cli/ckpt_work.h"
#include "cli/progress.h"
#include "cli/table.h"

namespace dlrover::cli {
namespace {

using namespace dlrover::ckpt;

std::int64_t now_s() {
    return std::time(nullptr);
}

/// One of the two sets of checkpoints that have manifests.
struct Candidate {
    std::string folder;
    CheckpointId id;
    bool suspect = false;
};

Result<Manifest> read_manifest(const Candidate &candidate) {
    CheckpointFolder folder(candidate.folder);
    return candidate.suspect ? folder.read_suspect(candidate.id) : folder.read_manifest(candidate.id);
}

std::uint64_t bytes_of(const Manifest &manifest) {
    std::uint64_t bytes = manifest.index ? manifest.index->bytes : 0;
    for (const RankFile &file : manifest.ranks) bytes += file.file_bytes;
    return bytes;
}

std::vector<Candidate> all_candidates(const Place &place) {
    std::vector<Candidate> all;
    for (const LineageFolder &lineage : place.lineages) {
        for (const CheckpointId &id : lineage.listing.complete) all.push_back({lineage.path, id, false});
        for (const CheckpointId &id : lineage.listing.suspect) all.push_back({lineage.path, id, true});
    }
    return all;
}

bool wanted(const Candidate &candidate, const Place &place, std::optional<std::uint64_t> step) {
    if (place.id) return candidate.id == *place.id && (!step || candidate.id.step.value() == *step);
    return step ? candidate.id.step.value() == *step : !candidate.suspect;
}

/// By name alone: whether it is whole is the question.
Result<std::vector<Candidate>> candidates_to_verify(const CkptOptions &options) {
    auto place = options.all ? find_place(options.folder) : find_one_lineage(options.folder);
    if (!place) return place.take_status();
    std::vector<Candidate> all = all_candidates(*place);
    if (options.all && !place->id) {
        if (!all.empty()) return all;
        return Status(Code::not_found, options.folder + " holds no complete checkpoint");
    }
    for (const Candidate &candidate : all)
        if (wanted(candidate, *place, options.step())) return std::vector{candidate};
    std::string which = options.step() ? " of step " + std::to_string(*options.step()) : "";
    return Status(Code::not_found, options.folder + " holds no complete checkpoint" + which);
}

/// corrupt; unsupported: nothing is wrong but that it is of another version. Prints what is found.
Code verify_one(const Candidate &candidate) {
    std::string name = printable(candidate.folder) + "/" + checkpoint_folder_name(candidate.id);
    auto manifest = read_manifest(candidate);
    std::vector<Status> found;
    std::uint64_t bytes = 0;
    if (manifest.ok()) {
        bytes = bytes_of(*manifest);
        Progress progress("verify step " + std::to_string(candidate.id.step.value()), bytes);
        found =
            CheckpointFolder(candidate.folder).damage(*manifest, [&](std::uint64_t n) { progress.add(n); });
    } else {
        found.push_back(manifest.take_status());
    }
    if (found.empty()) {
        std::cout << name << ": whole, " << count_of(manifest->ranks.size(), "rank") << ", "
                  << format_size_bytes(bytes) << std::endl;
        return Code::ok;
    }
    bool other =
        std::ranges::all_of(found, [](const Status &status) { return status.code() == Code::unsupported; });
    std::cout << name << (other ? ": OF ANOTHER VERSION\n" : ": DAMAGED\n");
    for (const Status &status : found) std::cout << "  " << printable(status.message()) << "\n";
    std::cout.flush();
    return other ? Code::unsupported : Code::corrupt;
}

}  // namespace

Status list_places(const CkptOptions &options) {
    auto place = find_place(options.folder);
    if (!place) return place.take_status();
    std::vector<LineageSummary> lineages;
    for (const LineageFolder &lineage : place->lineages) lineages.push_back(survey_lineage(lineage));
    if (place->id)
        std::erase_if(lineages.front().checkpoints, [&](auto &summary) { return summary.id != *place->id; });
    std::cout << (options.json ? lineages_json(lineages) : lineages_text(lineages, now_s()));
    return {};
}

Status show_checkpoint(const CkptOptions &options) {
    auto place = find_one_lineage(options.folder);
    if (!place) return place.take_status();
    auto chosen = choose_checkpoint(*place, options.step());
    if (!chosen) return chosen.take_status();
    for (const Status &status : chosen->passed_over) note("passed over: " + status.message());
    const std::string &folder = place->lineages.front().path;
    CheckpointId id = chosen->manifest.id;
    auto view = open_checkpoint(folder, std::move(chosen->manifest), chosen->suspect);
    if (!view) return view.take_status();
    struct stat st;
    std::string manifest = folder + "/" + (view->suspect ? suspect_name(id) : manifest_name(id));
    std::int64_t written_s = ::stat(manifest.c_str(), &st) == 0 ? st.st_mtim.tv_sec : 0;
    std::cout << (options.json ? checkpoint_json(*view, written_s)
                               : checkpoint_text(*view, written_s, now_s()));
    return {};
}

Status verify_checkpoints(const CkptOptions &options) {
    auto candidates = candidates_to_verify(options);
    if (!candidates) return candidates.take_status();
    std::map<Code, std::size_t> count;
    for (const Candidate &candidate : *candidates) ++count[verify_one(candidate)];
    auto failed = [&](Code code, const char *what) {
        return Status(code, std::to_string(count[code]) + " of " + std::to_string(candidates->size()) +
                                " checkpoints are " + what);
    };
    if (count[Code::corrupt] > 0) return failed(Code::corrupt, "damaged");
    if (count[Code::unsupported] > 0) return failed(Code::unsupported, "of another version");
    return {};
}

}  // namespace dlrover::cli
