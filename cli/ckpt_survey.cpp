// SPDX-License-Identifier: Apache-2.0
#include "cli/ckpt_survey.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "base/units.h"
#include "ckpt/storage_io.h"
#include "cli/json.h"
#include "cli/table.h"

namespace dlrover::cli {
namespace {

using namespace dlrover::ckpt;

Status check_length(const std::string &path, std::uint64_t bytes) {
    struct stat st;
    if (::stat(path.c_str(), &st) != 0) return file_error("look at", path);
    if (S_ISREG(st.st_mode) && static_cast<std::uint64_t>(st.st_size) == bytes) return {};
    return Status(Code::corrupt, path + " does not have the length that the manifest says");
}

Status check_lengths(const CheckpointFolder &folder, const Manifest &manifest) {
    for (const RankFile &file : manifest.ranks)
        DLROVER_TRY(check_length(folder.rank_path(manifest.id, file.rank), file.file_bytes));
    if (!manifest.index) return {};
    return check_length(folder.data_folder(manifest.id) + "/" + index_file_name, manifest.index->bytes);
}

std::int64_t time_of(const std::string &path) {
    struct stat st;
    return ::stat(path.c_str(), &st) == 0 ? st.st_mtim.tv_sec : 0;
}

CheckpointSummary look_at_complete(const LineageFolder &lineage, const CheckpointId &id, bool suspect,
                                   std::string &name) {
    CheckpointFolder folder(lineage.path);
    CheckpointSummary summary;
    summary.id = id;
    summary.standing = suspect ? Standing::suspect : Standing::complete;
    summary.written_s = time_of(lineage.path + "/" + (suspect ? suspect_name(id) : manifest_name(id)));
    auto manifest = suspect ? folder.read_suspect(id) : folder.read_manifest(id);
    Status status = manifest.ok() ? check_lengths(folder, *manifest) : manifest.take_status();
    if (manifest.ok()) {
        summary.ranks = manifest->ranks.size();
        summary.bytes = manifest->index ? manifest->index->bytes : 0;
        for (const RankFile &file : manifest->ranks) summary.bytes += file.file_bytes;
        if (name.empty()) name = manifest->lineage;
    }
    if (status.ok()) return summary;
    summary.standing = Standing::damaged;
    summary.why = status.message();
    return summary;
}

CheckpointSummary look_at_incomplete(const LineageFolder &lineage, const CheckpointId &id) {
    CheckpointSummary summary;
    summary.id = id;
    summary.standing = Standing::incomplete;
    std::string folder = CheckpointFolder(lineage.path).data_folder(id);
    summary.written_s = time_of(folder);
    std::error_code error;
    std::filesystem::directory_iterator it(folder, error), end;
    for (; !error && it != end; it.increment(error)) {
        std::string name = it->path().filename().string();
        struct stat st;
        if (::lstat(it->path().c_str(), &st) != 0 || !S_ISREG(st.st_mode)) continue;
        summary.ranks += name.starts_with("rank-") ? 1 : 0;
        summary.bytes += static_cast<std::uint64_t>(st.st_size);
    }
    if (error) summary.why = file_error("listing of", folder, error.value()).message();
    return summary;
}

void mark_newest(std::vector<CheckpointSummary> &checkpoints) {
    auto newest = std::ranges::find(checkpoints, Standing::complete, &CheckpointSummary::standing);
    if (newest != checkpoints.end()) newest->newest = true;
}

std::string state_text(const CheckpointSummary &summary) {
    std::string text = standing_name(summary.standing);
    if (summary.newest) text += " (newest)";
    if (!summary.why.empty()) text += ": " + printable(summary.why);
    return text;
}

}  // namespace

std::string age_text(std::int64_t written_s, std::int64_t now_s) {
    if (written_s == 0) return "-";
    if (now_s <= written_s) return "0 s";
    return format_duration(std::chrono::seconds(now_s - written_s));
}

namespace {

void write_summary(JsonWriter &json, const CheckpointSummary &c) {
    json.begin_object().field("name", checkpoint_folder_name(c.id)).field("train_step", c.id.step.value());
    json.field("term", c.id.generation.term.value()).field("generation", c.id.generation.number);
    json.field("state", standing_name(c.standing)).field("newest", c.newest).field("ranks", c.ranks);
    json.field("bytes", c.bytes).field("written_s", c.written_s).field("why", c.why).end_object();
}

}  // namespace

const char *standing_name(Standing standing) noexcept {
    switch (standing) {
        case Standing::complete:
            return "complete";
        case Standing::incomplete:
            return "incomplete";
        case Standing::suspect:
            return "suspect";
        case Standing::damaged:
            return "damaged";
    }
    return "unknown";
}

LineageSummary survey_lineage(const LineageFolder &folder) {
    LineageSummary summary{folder.path, "", {}};
    for (const CheckpointId &id : folder.listing.complete)
        summary.checkpoints.push_back(look_at_complete(folder, id, false, summary.lineage));
    for (const CheckpointId &id : folder.listing.suspect)
        summary.checkpoints.push_back(look_at_complete(folder, id, true, summary.lineage));
    for (const CheckpointId &id : folder.listing.incomplete)
        summary.checkpoints.push_back(look_at_incomplete(folder, id));
    std::ranges::sort(summary.checkpoints, std::greater<>(), &CheckpointSummary::id);
    mark_newest(summary.checkpoints);
    return summary;
}

std::optional<CheckpointId> newest_whole(const LineageFolder &folder) {
    for (const CheckpointId &id : folder.listing.complete) {  // newest first
        std::string name;
        if (look_at_complete(folder, id, false, name).standing == Standing::complete) return id;
    }
    return std::nullopt;
}

std::string lineages_text(const std::vector<LineageSummary> &lineages, std::int64_t now_s) {
    std::string out;
    for (const LineageSummary &lineage : lineages) {
        out += out.empty() ? "" : "\n";
        out += printable(lineage.lineage.empty() ? "unknown lineage" : lineage.lineage) + " in " +
               printable(lineage.folder) + "\n";
        Table table({"STEP", "GENERATION", "RANKS", "SIZE", "AGE", "STATE"});
        for (const CheckpointSummary &c : lineage.checkpoints)
            table.add({std::to_string(c.id.step.value()), to_string(c.id.generation), std::to_string(c.ranks),
                       format_size_bytes(c.bytes), age_text(c.written_s, now_s), state_text(c)});
        out += table.text("  ");
    }
    return out;
}

std::string lineages_json(const std::vector<LineageSummary> &lineages) {
    JsonWriter json;
    json.begin_object().key("lineages").begin_array();
    for (const LineageSummary &lineage : lineages) {
        json.begin_object().field("folder", lineage.folder).field("lineage", lineage.lineage);
        json.key("checkpoints").begin_array();
        for (const CheckpointSummary &c : lineage.checkpoints) write_summary(json, c);
        json.end_array().end_object();
    }
    json.end_array().end_object();
    return json.text() + "\n";
}

}  // namespace dlrover::cli
