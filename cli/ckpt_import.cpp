// SPDX-License-Identifier: Apache-2.0
// import: a checkpoint that a job can start from, out of a .safetensors file.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "base/count_of.h"
#include "base/units.h"
#include "ckpt/checkpoint_folder.h"
#include "ckpt/lineage.h"
#include "ckpt/storage_index.h"
#include "ckpt/storage_io.h"
#include "ckpt/storage_writer.h"
#include "cli/ask.h"
#include "cli/ckpt_work.h"
#include "cli/import_source.h"
#include "cli/progress.h"
#include "cli/table.h"

namespace dlrover::cli {
namespace {

using namespace dlrover::ckpt;

/// A job goes on from the newest: what is imported would never be looked at.
Status check_empty(const std::string &folder, const CheckpointId &id) {
    auto listing = list_checkpoints(folder);
    if (!listing) return listing.take_status();
    if (!listing->complete.empty() || !listing->suspect.empty())
        return Status(Code::already_exists,
                      folder +
                          " has checkpoints already, and a job would go on from the newest of them: "
                          "choose another lineage, or remove them");
    for (const CheckpointId &other : listing->incomplete)
        if (other == id)
            return Status(Code::already_exists, folder + "/" + checkpoint_folder_name(id) +
                                                    " is there already: dlrover ckpt rm --step " +
                                                    std::to_string(id.step.value()) + " --force");
    return {};
}

Status write_checkpoint(const std::string &folder, const SafeTensorsFile &file, const Manifest &empty,
                        const std::vector<std::uint8_t> &table) {
    Manifest manifest = empty;
    CheckpointFolder checkpoints(folder);
    std::string data = checkpoints.data_folder(manifest.id);
    std::vector<const std::byte *> places;
    for (const SafeTensor &tensor : file.tensors()) places.push_back(file.bytes(tensor).data());
    SealedObject object{{}, table, {}, places};
    auto written = write_storage_file(data, object);
    if (!written) return written.take_status();
    manifest.ranks.push_back(*written);
    auto index = write_storage_index(data, manifest.ranks);
    if (!index) return index.take_status();
    manifest.index = *index;
    return checkpoints.publish(manifest);
}

Result<std::string> cluster_of(const CkptOptions &options) {
    if (!options.cluster.empty()) return options.cluster;
    if (const char *name = std::getenv("SLURM_CLUSTER_NAME"); name != nullptr && *name != 0)
        return std::string(name);
    auto node = ask_node_check();
    if (node) return node->cluster;
    return Status(
        Code::invalid_argument,
        "which cluster is the job going to run on? Say --cluster NAME (\"scontrol show config\" has "
        "it as ClusterName); " +
            node.status().message());
}

/// Of the job that is to start from it.
Result<std::string> lineage_for(const CkptOptions &options) {
    if (options.run.empty()) return options.lineage;
    auto cluster = cluster_of(options);
    if (!cluster) return cluster;
    return make_lineage(*cluster, ::getuid(), options.run, options.command);
}

}  // namespace

Status import_checkpoint(const CkptOptions &options) {
    auto lineage = lineage_for(options);
    if (!lineage) return lineage.take_status();
    Manifest manifest{{{Term(0), 0}, TrainStep(*options.step())}, *lineage, {}, {}};
    std::string folder = options.folder + "/" + escape_file_name(*lineage);
    DLROVER_TRY(check_empty(folder, manifest.id));
    auto file = SafeTensorsFile::open(options.file);
    if (!file) return file.take_status();
    if (file->tensors().empty()) return Status(Code::not_found, options.file + " has no tensors");
    Progress progress("read", file->data_bytes());
    auto table =
        make_import_table(*file, *lineage, manifest.id.step, [&](std::uint64_t n) { progress.add(n); });
    progress.clear();
    if (!table) return Status(Code::unsupported, options.file + ": " + table.status().message());
    // Who makes it imports; another import at the same time is refused, and its files stay.
    DLROVER_TRY(make_folders(folder));
    std::string data = CheckpointFolder(folder).data_folder(manifest.id);
    if (::mkdir(data.c_str(), 0777) != 0) return file_error("making", data);
    if (Status status = write_checkpoint(folder, *file, manifest, *table); !status.ok()) {
        (void)CheckpointFolder(folder).remove(manifest.id).ok();
        return status;
    }
    std::cout << "step " << manifest.id.step.value() << ": " << count_of(file->tensors().size(), "tensor")
              << ", " << format_size_bytes(file->data_bytes()) << " in "
              << printable(CheckpointFolder(folder).data_folder(manifest.id)) << "\n";
    if (!options.run.empty())
        std::cout << "jobs of this command with --dlrover-name=" << options.run
                  << " and this folder as --dlrover-ckpt-dir go on from it\n";
    return {};
}

}  // namespace dlrover::cli
