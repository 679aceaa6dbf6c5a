// SPDX-License-Identifier: Apache-2.0
// export: global tensors as a file of another format.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>

#include "base/count_of.h"
#include "base/units.h"
#include "ckpt/storage_io.h"
#include "ckpt/storage_name.h"
#include "cli/ckpt_places.h"
#include "cli/ckpt_work.h"
#include "cli/export_plan.h"
#include "cli/output_file.h"
#include "cli/progress.h"
#include "cli/python_writer.h"
#include "cli/table.h"
#include "cli/tensor_reader.h"

namespace dlrover::cli {
namespace {

using namespace dlrover::ckpt;

Result<CheckpointView> open_chosen(const CkptOptions &options) {
    auto place = find_one_lineage(options.folder);
    if (!place) return place.take_status();
    auto chosen = choose_checkpoint(*place, options.step());
    if (!chosen) return chosen.take_status();
    for (const Status &status : chosen->passed_over) note("passed over: " + status.message());
    return open_checkpoint(place->lineages.front().path, std::move(chosen->manifest), chosen->suspect);
}

/// `format` is what programs around torch look for in a .safetensors file.
void describe(const Manifest &manifest, SafeTensorsHeader &header) {
    header.metadata = {{"format", "pt"},
                       {"lineage", manifest.lineage},
                       {"train_step", std::to_string(manifest.id.step.value())},
                       {"generation", to_string(manifest.id.generation)}};
}

/// Pipes have no offsets; a file is written from its start on just so.
Status write_all(int fd, std::span<const std::byte> bytes, const std::string &path) {
    constexpr std::size_t call_bytes = 16u << 20;
    while (!bytes.empty()) {
        ssize_t n = ::write(fd, bytes.data(), std::min(bytes.size(), call_bytes));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return file_error("write of", path);
        bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
    return {};
}

Status write_tensors(int fd, const std::string &path, const CheckpointView &view, const ExportPlan &plan,
                     const std::string &head) {
    Progress progress("export", plan.bytes);
    TensorReader reader(view);
    DLROVER_TRY(write_all(fd, std::as_bytes(std::span(head)), path));
    for (const GlobalTensor *tensor : plan.tensors) {
        auto bytes = reader.read(*tensor);
        if (!bytes) return bytes.take_status();
        DLROVER_TRY(write_all(fd, *bytes, path));
        progress.add(bytes->size());
    }
    return {};
}

Status write_file(const std::string &path, const CheckpointView &view, const ExportPlan &plan,
                  const std::string &head) {
    auto file = OutputFile::create(path, head.size() + plan.bytes);
    if (!file) return file.take_status();
    DLROVER_TRY(write_tensors(file->fd(), file->temporary(), view, plan, head));
    return file->commit();
}

/// Where Python ended early, its own sentence is on stderr, and a write that failed for it says nothing.
Status write_by_python(const CkptOptions &options, const CheckpointView &view, const ExportPlan &plan,
                       const std::string &head) {
    auto python = PythonWriter::start(options.format, options.file);
    if (!python) return python.take_status();
    Status written = write_tensors(python->fd(), options.file, view, plan, head);
    bool source = written.code() == Code::corrupt || written.code() == Code::not_found;
    Status finished = python->finish();
    if (source) return written;
    return finished.ok() ? std::move(written) : std::move(finished).with_context(options.file);
}

void note_names(const std::string &what, const std::vector<std::string> &names) {
    constexpr std::size_t most = 20;
    if (names.empty()) return;
    std::string text = what;
    for (std::size_t i = 0; i < std::min(most, names.size()); ++i) text += (i == 0 ? ": " : ", ") + names[i];
    if (names.size() > most) text += " and " + std::to_string(names.size() - most) + " more";
    note(text);
}

Status check_free(const CkptOptions &options) {
    struct stat st;
    if (::lstat(options.file.c_str(), &st) != 0 || (options.force && !S_ISDIR(st.st_mode))) return {};
    bool replaceable = !S_ISDIR(st.st_mode);
    return Status(Code::already_exists, options.file + " is there already" +
                                            (replaceable ? "; --force replaces it" : ": name another one"));
}

}  // namespace

Status export_checkpoint(const CkptOptions &options) {
    DLROVER_TRY(check_free(options));
    auto view = open_chosen(options);
    if (!view) return view.take_status();
    bool safetensors = options.format == "safetensors";
    auto plan = plan_export(view->plan, options.names, !safetensors);
    if (!plan) return plan.take_status();
    describe(view->manifest, plan->header);
    auto head = encode_safetensors_header(plan->header);
    if (!head) return head.take_status();
    DLROVER_TRY(safetensors ? write_file(options.file, *view, *plan, *head)
                            : write_by_python(options, *view, *plan, *head));
    note_names("left out, values of each rank's own", plan->own_values);
    note_names("left out, no tensors", plan->not_tensors);
    std::cout << "step " << view->manifest.id.step.value() << ": " << count_of(plan->tensors.size(), "tensor")
              << ", " << format_size_bytes(plan->bytes) << " in " << printable(options.file) << "\n";
    return {};
}

}  // namespace dlrover::cli
