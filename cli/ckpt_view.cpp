// SPDX-License-Identifier: Apache-2.0
#include "cli/ckpt_view.h"

#include <algorithm>

#include "base/units.h"
#include "ckpt/storage_name.h"
#include "cli/ckpt_survey.h"
#include "cli/json.h"
#include "cli/table.h"
#include "cli/tensor_type.h"

namespace dlrover::cli {
namespace {

using namespace dlrover::ckpt;

std::string shape_text(const std::vector<std::uint64_t> &shape) {
    std::string text;
    for (std::uint64_t n : shape) text += (text.empty() ? "" : " x ") + std::to_string(n);
    return text.empty() ? "scalar" : text;
}

struct Sums {
    std::uint64_t ledger_bytes = 0, tensor_bytes = 0;
    std::size_t skeletons = 0;
};

Sums sums_of(const CheckpointView &view) {
    Sums sums;
    for (const StorageFile &file : view.files) {
        sums.ledger_bytes += file.ledger().size();
        sums.skeletons += file.table().skeleton().empty() ? 0 : 1;
    }
    for (const GlobalTensor &tensor : view.plan.tensors) sums.tensor_bytes += tensor_bytes(tensor);
    return sums;
}

std::string line(const char *name, const std::string &value) {
    std::string label = std::string("  ") + name;
    label.resize(12, ' ');
    return label + printable(value) + "\n";
}

std::string own_values_text(const std::vector<std::string> &names) {
    if (names.empty()) return "";
    std::string out = "\nValues of each rank's own (no global tensors):\n";
    for (const std::string &name : names) out += "  " + printable(name) + "\n";
    return out;
}

void write_ranks(JsonWriter &json, const CheckpointView &view) {
    json.key("ranks").begin_array();
    for (const StorageFile &file : view.files) {
        RankFile summary = file.summary();
        json.begin_object().field("rank", summary.rank.value()).field("bytes", summary.file_bytes);
        json.field("chunks", file.table().count())
            .field("ledger_bytes", static_cast<std::uint64_t>(file.ledger().size()))
            .field("skeleton_bytes", static_cast<std::uint64_t>(file.table().skeleton().size()))
            .end_object();
    }
    json.end_array();
}

void write_tensors(JsonWriter &json, const CheckpointView &view) {
    json.key("tensors").begin_array();
    for (const GlobalTensor &tensor : view.plan.tensors) {
        json.begin_object().field("name", tensor.name).field("dtype", tensor_type_name(tensor.dtype));
        json.key("shape").begin_array();
        for (std::uint64_t n : tensor.shape) json.value(n);
        json.end_array().field("pieces", static_cast<std::uint64_t>(tensor.pieces.size()));
        json.field("bytes", tensor_bytes(tensor)).end_object();
    }
    json.end_array().key("own_values").begin_array();
    for (const std::string &name : view.plan.left_out) json.value(name);
    json.end_array();
}

}  // namespace

std::uint64_t CheckpointView::file_bytes() const {
    std::uint64_t bytes = manifest.index ? manifest.index->bytes : 0;
    for (const RankFile &file : manifest.ranks) bytes += file.file_bytes;
    return bytes;
}

/// Its pieces are in files, so their sum does not overflow.
std::uint64_t tensor_bytes(const GlobalTensor &tensor) {
    if (std::find(tensor.shape.begin(), tensor.shape.end(), 0u) != tensor.shape.end()) return 0;
    std::uint64_t bytes = element_bytes(tensor.dtype);
    for (std::uint64_t n : tensor.shape) bytes *= n;
    return bytes;
}

Result<CheckpointView> open_checkpoint(const std::string &lineage_folder, Manifest manifest, bool suspect) {
    CheckpointView view{std::move(manifest), suspect, {}, {}};
    CheckpointFolder folder(lineage_folder);
    for (const RankFile &expected : view.manifest.ranks) {
        auto file = folder.open_rank(view.manifest, expected);
        if (!file) return file.take_status();
        view.files.push_back(std::move(*file));
    }
    std::vector<const ObjectTableView *> tables;
    for (const StorageFile &file : view.files) tables.push_back(&file.table());
    view.plan = plan_index(tables);
    return view;
}

std::string checkpoint_text(const CheckpointView &view, std::int64_t written_s, std::int64_t now_s) {
    Sums sums = sums_of(view);
    std::size_t ranks = view.files.size();
    std::string out = "Step " + std::to_string(view.manifest.id.step.value()) + ", generation " +
                      to_string(view.manifest.id.generation) + (view.suspect ? " (suspect)" : "") + "\n";
    out += line("lineage", view.manifest.lineage);
    if (written_s != 0) out += line("written", age_text(written_s, now_s) + " ago");
    out += line("ranks", std::to_string(ranks) + ", " + format_size_bytes(view.file_bytes()) + " in files");
    out += line("index", view.manifest.index ? format_size_bytes(view.manifest.index->bytes) : "none");
    out += line("skeleton", std::to_string(sums.skeletons) + " of " + std::to_string(ranks) + " ranks");
    out += line("ledger", format_size_bytes(sums.ledger_bytes));
    out += line("tensors",
                std::to_string(view.plan.tensors.size()) + ", " + format_size_bytes(sums.tensor_bytes));
    if (!view.plan.tensors.empty()) out += "\n";
    Table table({"NAME", "TYPE", "SHAPE", "PIECES", "SIZE"});
    for (const GlobalTensor &tensor : view.plan.tensors)
        table.add({printable(tensor.name), tensor_type_name(tensor.dtype), shape_text(tensor.shape),
                   std::to_string(tensor.pieces.size()), format_size_bytes(tensor_bytes(tensor))});
    if (!table.empty()) out += table.text("  ");
    return out + own_values_text(view.plan.left_out);
}

std::string checkpoint_json(const CheckpointView &view, std::int64_t written_s) {
    const Manifest &manifest = view.manifest;
    JsonWriter json;
    json.begin_object().field("name", checkpoint_folder_name(manifest.id)).field("lineage", manifest.lineage);
    json.field("train_step", manifest.id.step.value())
        .field("term", manifest.id.generation.term.value())
        .field("generation", manifest.id.generation.number);
    json.field("state", view.suspect ? "suspect" : "complete")
        .field("world_size", static_cast<std::uint64_t>(manifest.ranks.size()))
        .field("bytes", view.file_bytes())
        .field("index_bytes", manifest.index ? manifest.index->bytes : std::uint64_t{0})
        .field("written_s", written_s);
    write_ranks(json, view);
    write_tensors(json, view);
    json.end_object();
    return json.text() + "\n";
}

}  // namespace dlrover::cli
