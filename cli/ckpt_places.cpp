// SPDX-License-Identifier: Apache-2.0
#include "cli/ckpt_places.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "ckpt/storage_io.h"
#include "ckpt/storage_name.h"

namespace dlrover::cli {
namespace {

using namespace dlrover::ckpt;
namespace fs = std::filesystem;

bool holds(const CheckpointListing &listing) {
    return !listing.complete.empty() || !listing.incomplete.empty() || !listing.suspect.empty();
}

bool contains(const std::vector<CheckpointId> &ids, const CheckpointId &id) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
}

Status check_is_folder(const std::string &folder) {
    struct stat st;
    if (::stat(folder.c_str(), &st) != 0) {
        if (errno == ENOENT) return Status(Code::not_found, folder + ": there is no such folder");
        return file_error("look at", folder);
    }
    return S_ISDIR(st.st_mode) ? Status() : Status(Code::not_found, folder + " is no folder");
}

/// The folder is a checkpoint's own, perhaps by way of the link `latest`.
Result<std::optional<Place>> find_single(const std::string &folder) {
    std::error_code error;
    fs::path path = fs::canonical(folder, error);
    if (error) return file_error("look at", folder, error.value());
    auto id = parse_checkpoint_folder_name(path.filename().string());
    if (!id) return std::optional<Place>{};
    LineageFolder lineage{path.parent_path().string(), {}};
    auto listing = list_checkpoints(lineage.path);
    if (!listing) return listing.take_status();
    lineage.listing = std::move(*listing);
    return std::optional(Place{{std::move(lineage)}, *id});
}

Status add_lineages(const std::string &folder, std::vector<LineageFolder> &lineages) {
    std::error_code error;
    fs::directory_iterator it(folder, error), end;
    for (; !error && it != end; it.increment(error)) {
        std::error_code ignored;
        if (!it->is_directory(ignored) || it->path().filename().string().starts_with('.')) continue;
        auto listing = list_checkpoints(it->path().string());
        if (!listing) return listing.take_status();
        if (holds(*listing)) lineages.push_back({it->path().string(), std::move(*listing)});
    }
    if (error) return file_error("listing of", folder, error.value());
    std::sort(lineages.begin(), lineages.end(), [](auto &a, auto &b) { return a.path < b.path; });
    return {};
}

Result<ChosenCheckpoint> read_chosen(const Place &place, const CheckpointId &id) {
    const LineageFolder &lineage = place.lineages.front();
    CheckpointFolder folder(lineage.path);
    bool suspect = contains(lineage.listing.suspect, id);
    if (!suspect && !contains(lineage.listing.complete, id))
        return Status(Code::not_found,
                      folder.data_folder(id) + " is incomplete: no manifest says what belongs to it");
    auto manifest = suspect ? folder.read_suspect(id) : folder.read_manifest(id);
    if (!manifest) return manifest.take_status();
    return ChosenCheckpoint{std::move(*manifest), suspect, {}};
}

/// rank-R/step-S.dlrover
bool holds_plain_files(const std::string &folder) {
    std::error_code error;
    for (fs::directory_iterator it(folder + "/rank-0", error), end; !error && it != end; it.increment(error))
        if (it->path().extension() == ".dlrover") return true;
    return false;
}

}  // namespace

Result<Place> find_place(const std::string &given) {
    DLROVER_TRY(check_is_folder(given));
    std::string folder = given;
    while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
    auto single = find_single(folder);
    if (!single) return single.take_status();
    if (*single) return std::move(**single);
    auto listing = list_checkpoints(folder);
    if (!listing) return listing.take_status();
    Place place;
    if (holds(*listing))
        place.lineages.push_back({folder, std::move(*listing)});
    else
        DLROVER_TRY(add_lineages(folder, place.lineages));
    if (!place.lineages.empty()) return place;
    return Status(Code::not_found,
                  holds_plain_files(folder)
                      ? folder +
                            " holds plain files of a run without a daemon (DLROVER_LOCAL_DIR): only that "
                            "program reads them; dlrover ckpt is for checkpoints on storage "
                            "(--dlrover-ckpt-dir)"
                      : folder + " holds no checkpoints of ours");
}

Result<Place> find_one_lineage(const std::string &folder) {
    auto place = find_place(folder);
    if (!place || place->lineages.size() == 1) return place;
    constexpr std::size_t most = 10;
    std::string names;
    for (std::size_t i = 0; i < std::min(most, place->lineages.size()); ++i)
        names += (i == 0 ? "" : ", ") + place->lineages[i].path;
    if (place->lineages.size() > most) names += ", …";
    return Status(Code::invalid_argument, folder + " holds " + std::to_string(place->lineages.size()) +
                                              " lineages: give the folder of one (" + names + ")");
}

std::optional<CheckpointId> newest_of_step(const std::vector<CheckpointId> &newest_first,
                                           std::uint64_t step) {
    for (const CheckpointId &id : newest_first)
        if (id.step.value() == step) return id;
    return std::nullopt;
}

Result<ChosenCheckpoint> choose_checkpoint(const Place &place, std::optional<std::uint64_t> step) {
    const LineageFolder &lineage = place.lineages.front();
    if (place.id) {
        if (!step || place.id->step.value() == *step) return read_chosen(place, *place.id);
        return Status(Code::invalid_argument, "the folder is that of step " +
                                                  std::to_string(place.id->step.value()) + ", not of step " +
                                                  std::to_string(*step));
    }
    if (step) {
        const CheckpointListing &listing = lineage.listing;
        for (const auto *ids : {&listing.complete, &listing.suspect, &listing.incomplete})
            if (auto id = newest_of_step(*ids, *step)) return read_chosen(place, *id);
        return Status(Code::not_found, lineage.path + " has no checkpoint of step " + std::to_string(*step));
    }
    auto newest = CheckpointFolder(lineage.path).newest();
    if (!newest) return newest.take_status();
    return ChosenCheckpoint{std::move(newest->manifest), false, std::move(newest->passed_over)};
}

}  // namespace dlrover::cli
