// SPDX-License-Identifier: Apache-2.0
#include "cli/ckpt_removal.h"

#include <algorithm>

#include "cli/ckpt_places.h"

namespace dlrover::cli {
namespace {

using namespace dlrover::ckpt;

class Planner {
  public:
    Planner(const CheckpointListing &listing, const std::optional<CheckpointId> &newest,
            const CkptOptions &options)
        : listing_(listing), newest_(newest), options_(options) {}

    Result<RemovalPlan> plan() {
        for (std::uint64_t step : options_.steps) DLROVER_TRY(take_step(step));
        if (options_.older_than) take_older(*options_.older_than);
        if (options_.incomplete)
            for (const CheckpointId &id : listing_.incomplete) take_incomplete(id);
        if (options_.suspect)
            for (const CheckpointId &id : listing_.suspect) take(id);
        std::sort(plan_.ids.begin(), plan_.ids.end());
        plan_.ids.erase(std::unique(plan_.ids.begin(), plan_.ids.end()), plan_.ids.end());
        return std::move(plan_);
    }

  private:
    void take(const CheckpointId &id) { plan_.ids.push_back(id); }

    Status take_step(std::uint64_t step) {
        bool found = false;
        for (const auto *ids : {&listing_.complete, &listing_.suspect, &listing_.incomplete})
            for (const CheckpointId &id : *ids) {
                if (id.step.value() != step) continue;
                found = true;
                if (id == newest_ && !options_.force)
                    return Status(Code::invalid_argument,
                                  checkpoint_folder_name(id) +
                                      " is the newest whole checkpoint: a job would "
                                      "go on from it; --force removes it all the same");
                if (ids == &listing_.incomplete)
                    take_incomplete(id);
                else
                    take(id);
            }
        if (found) return {};
        return Status(Code::not_found, "there is no checkpoint of step " + std::to_string(step));
    }

    /// With a training run that went back, a lower step can be the newest.
    void take_older(std::uint64_t step) {
        for (const CheckpointId &id : listing_.complete) {
            if (id.step.value() >= step) continue;
            if (options_.force || (newest_ && id < *newest_))
                take(id);
            else
                plan_.notes.push_back(checkpoint_folder_name(id) + " stays: " + why_it_stays(id));
        }
    }

    std::string why_it_stays(const CheckpointId &id) const {
        if (id == newest_) return "it is the newest whole one";
        return "it is damaged, and newer than all that are whole (--step " + std::to_string(id.step.value()) +
               " removes it)";
    }

    void take_incomplete(const CheckpointId &id) {
        bool left_over = !listing_.complete.empty() && id < listing_.complete.front();
        if (left_over || options_.force)
            take(id);
        else
            plan_.notes.push_back(checkpoint_folder_name(id) +
                                  " stays: nothing newer is complete, it may be being written (--force "
                                  "removes it)");
    }

    const CheckpointListing &listing_;
    const std::optional<CheckpointId> &newest_;
    const CkptOptions &options_;
    RemovalPlan plan_;
};

}  // namespace

Result<RemovalPlan> plan_removal(const CheckpointListing &listing, const std::optional<CheckpointId> &newest,
                                 const CkptOptions &options) {
    return Planner(listing, newest, options).plan();
}

Result<RollbackPlan> plan_rollback(const CheckpointListing &listing, std::uint64_t step) {
    auto target = newest_of_step(listing.complete, step);
    if (!target) {
        bool aside = newest_of_step(listing.suspect, step).has_value();
        return Status(Code::not_found, "step " + std::to_string(step) +
                                           (aside ? " is suspect itself: --undo first"
                                                  : " has no complete checkpoint to go back to"));
    }
    RollbackPlan plan{*target, {}};
    for (const CheckpointId &id : listing.complete)
        if (id > *target) plan.newer.push_back(id);
    return plan;
}

}  // namespace dlrover::cli
