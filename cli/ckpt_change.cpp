// SPDX-License-Identifier: Apache-2.0
// rm and rollback: what changes a lineage's folder.
#include <iostream>

#include "base/count_of.h"
#include "ckpt/storage_name.h"
#include "cli/ckpt_places.h"
#include "cli/ckpt_removal.h"
#include "cli/ckpt_survey.h"
#include "cli/ckpt_work.h"
#include "cli/confirm.h"
#include "cli/table.h"

namespace dlrover::cli {
namespace {

using namespace dlrover::ckpt;

/// False: the person said no.
Result<bool> agreed(const CkptOptions &options, const std::vector<CheckpointId> &ids,
                    const std::string &question) {
    if (options.yes) return true;
    std::string list;
    for (const CheckpointId &id : ids) list += "  " + checkpoint_folder_name(id) + "\n";
    auto yes = confirm(list + question);
    if (yes.ok() && !*yes) std::cerr << "Nothing was changed.\n";
    return yes;
}

Result<LineageFolder> lineage_to_change(const CkptOptions &options) {
    auto place = find_one_lineage(options.folder);
    if (!place) return place.take_status();
    if (place->id)
        return Status(Code::invalid_argument,
                      "give the folder of the lineage (" + place->lineages.front().path + ") and --step");
    return std::move(place->lineages.front());
}

Status remove_all(const LineageFolder &lineage, const std::vector<CheckpointId> &ids) {
    CheckpointFolder folder(lineage.path);
    for (const CheckpointId &id : ids) {
        DLROVER_TRY(folder.remove(id));
        std::cout << "removed " << printable(folder.data_folder(id)) << std::endl;
    }
    return {};
}

Status undo_rollback(const CkptOptions &options, const LineageFolder &lineage) {
    const auto &ids = lineage.listing.suspect;
    if (ids.empty()) return Status(Code::not_found, lineage.path + " has no suspect checkpoint");
    auto yes = agreed(options, ids,
                      "Trust " + count_of(ids.size(), "checkpoint") + " of " + lineage.path + " again?");
    if (!yes || !*yes) return yes.take_status();
    CheckpointFolder folder(lineage.path);
    DLROVER_TRY(folder.take_back(ids));
    folder.refresh_hint();
    std::cout << count_of(ids.size(), "checkpoint") << " of " << printable(lineage.path)
              << (ids.size() == 1 ? " counts again\n" : " count again\n");
    return {};
}

/// What a job would go on from has to be there.
Status check_target(const LineageFolder &lineage, const CheckpointId &id) {
    CheckpointFolder folder(lineage.path);
    auto manifest = folder.read_manifest(id);
    if (!manifest) return manifest.take_status();
    return folder.check(*manifest);
}

}  // namespace

Status remove_checkpoints(const CkptOptions &options) {
    auto lineage = lineage_to_change(options);
    if (!lineage) return lineage.take_status();
    auto plan = plan_removal(lineage->listing, newest_whole(*lineage), options);
    if (!plan) return plan.take_status();
    for (const std::string &sentence : plan->notes) note(sentence);
    if (plan->ids.empty()) {
        std::cout << "nothing to remove\n";
        return {};
    }
    auto yes = agreed(
        options, plan->ids,
        "Remove " + count_of(plan->ids.size(), "checkpoint") + " of " + printable(lineage->path) + "?");
    if (!yes || !*yes) return yes.take_status();
    Status status = remove_all(*lineage, plan->ids);
    CheckpointFolder(lineage->path).refresh_hint();
    return status;
}

Status roll_back(const CkptOptions &options) {
    auto lineage = lineage_to_change(options);
    if (!lineage) return lineage.take_status();
    if (options.undo) return undo_rollback(options, *lineage);
    auto plan = plan_rollback(lineage->listing, *options.step());
    if (!plan) return plan.take_status();
    DLROVER_TRY(check_target(*lineage, plan->target));
    if (plan->newer.empty()) {
        std::cout << checkpoint_folder_name(plan->target) << " is the newest already\n";
        return {};
    }
    auto yes =
        agreed(options, plan->newer,
               "Pass over " + count_of(plan->newer.size(), "checkpoint") + " of " + printable(lineage->path) +
                   " and go on from step " + std::to_string(*options.step()) + "?");
    if (!yes || !*yes) return yes.take_status();
    CheckpointFolder folder(lineage->path);
    DLROVER_TRY(folder.set_aside(plan->newer));
    folder.refresh_hint();
    std::cout << count_of(plan->newer.size(), "checkpoint") << " of " << printable(lineage->path)
              << (plan->newer.size() == 1 ? " is" : " are") << " suspect now; a job goes on from "
              << checkpoint_folder_name(plan->target) << "\n";
    return {};
}

}  // namespace dlrover::cli
