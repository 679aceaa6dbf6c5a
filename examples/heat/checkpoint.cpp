// SPDX-License-Identifier: Apache-2.0
#include "examples/heat/checkpoint.h"

#include <cstdio>

#include "examples/heat/failure.h"

namespace heat {
namespace {

/// What is protected, by number.
enum Id : int { plate_id, step_id, ballast_id };
constexpr std::uint64_t words_per_mb = (1 << 20) / sizeof(std::uint64_t);

std::uint64_t ballast_word(std::uint64_t step, std::uint64_t index) {
    return (step * 0x9e3779b97f4a7c15ULL) ^ (index * 0xff51afd7ed558ccdULL);
}

void check(int result, const char *what) {
    if (result == DLROVER_OK) return;
    fail(result == DLROVER_E_STALE ? exit_stale : exit_failed, "%s: %s", what, dlrover_error_text());
}

}  // namespace

Checkpoints::Checkpoints(std::uint64_t ballast_mb) : ballast_(ballast_mb * words_per_mb) {
    check(dlrover_open(&context_), "dlrover_open");
    check(dlrover_get_world(context_, &world_), "dlrover_get_world");
}

Checkpoints::~Checkpoints() {
    dlrover_close(context_);
}

void Checkpoints::protect(Plate &plate) {
    const std::uint64_t whole[] = {plate.size(), plate.size()}, begin[] = {plate.first_row(), 0},
                        rows[] = {plate.rows(), plate.size()};
    check(dlrover_protect_array(context_, plate_id, "plate", plate.row(0), DLROVER_FLOAT64, 2, whole, begin,
                                rows),
          "dlrover_protect_array");
}

void Checkpoints::prepare(Plate &plate) {
    protect(plate);
    // One element that all ranks have alike: another number of ranks can go on with it.
    check(dlrover_protect_array(context_, step_id, "step", &step_, DLROVER_UINT64, 0, nullptr, nullptr,
                                nullptr),
          "dlrover_protect_array");
    if (!ballast_.empty())
        check(dlrover_protect(context_, ballast_id, ballast_.data(), ballast_.size(), DLROVER_UINT64),
              "dlrover_protect");
}

void Checkpoints::make_room() {
    check(dlrover_prepare(context_, dlrover_protected_bytes(context_)), "dlrover_prepare");
}

std::uint64_t Checkpoints::restore() {
    std::int64_t step = dlrover_restart_step(context_);
    int result = dlrover_restart(context_);
    if (result == DLROVER_E_NOT_FOUND) return 0;
    // The text names the memory that is not what was saved.
    if (result == DLROVER_E_INVALID) fail(exit_violation, "dlrover_restart: %s", dlrover_error_text());
    check(result, "dlrover_restart");
    if (static_cast<std::int64_t>(step_) != step)
        fail(exit_violation, "step %lu was restored instead of %ld", step_, step);
    check_ballast();
    return step_;
}

void Checkpoints::check_ballast() {
    for (std::uint64_t i = 0; i < ballast_.size(); ++i)
        if (ballast_[i] != ballast_word(step_, i))
            fail(exit_violation, "the ballast is not of step %lu", step_);
}

void Checkpoints::fill_ballast() {
    for (std::uint64_t i = 0; i < ballast_.size(); ++i) ballast_[i] = ballast_word(step_, i);
}

// dlrover_checkpoint() in its parts, so that a killer can choose between copy and seal.
void Checkpoints::save(Plate &plate, std::uint64_t step, PhaseFile &phase) {
    step_ = step;
    fill_ballast();
    phase.enter(Phase::copy);
    protect(plate);  // the rows move with every step
    dlrover_save *save = nullptr;
    int e = dlrover_save_begin(context_, step, dlrover_protected_bytes(context_), &save);
    if (e != DLROVER_OK) return give_up_save(e);
    e = dlrover_save_add_protected(save);
    if (e != DLROVER_OK) {
        dlrover_save_abort(save);
        return give_up_save(e);
    }
    phase.enter(Phase::seal);
    e = dlrover_save_commit(save);
    if (e != DLROVER_OK) return give_up_save(e);
    ++saved_;
    phase.saved(step);
}

void Checkpoints::give_up_save(int error) {
    if (error != DLROVER_E_SKIPPED && error != DLROVER_E_UNAVAILABLE && error != DLROVER_E_TIMEOUT)
        check(error, "save");
    if (error != DLROVER_E_SKIPPED)
        std::fprintf(stderr, "heat[%u]: save missed: %s\n", world_.rank, dlrover_error_text());
    ++skipped_;
}

void Checkpoints::report(std::uint64_t step) {
    if (int e = dlrover_report_step(context_, step); e == DLROVER_E_STALE) check(e, "dlrover_report_step");
}

}  // namespace heat
