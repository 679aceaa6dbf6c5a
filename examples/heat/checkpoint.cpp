// SPDX-License-Identifier: Apache-2.0
#include "examples/heat/checkpoint.h"

#include <cstdio>
#include <cstring>

#include "examples/heat/failure.h"

namespace heat {
namespace {

constexpr std::uint32_t blocks = 4;  // pieces that the slab is saved in
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

std::uint64_t Checkpoints::bytes(const Plate &plate) const {
    return std::uint64_t{plate.rows()} * plate.size() * sizeof(double) +
           ballast_.size() * sizeof(std::uint64_t);
}

void Checkpoints::prepare(const Plate &plate) {
    check(dlrover_prepare(context_, bytes(plate) + (blocks + 1) * 1024), "dlrover_prepare");
}

std::uint64_t Checkpoints::restore(Plate &plate) {
    dlrover_restore *restore = nullptr;
    int result = dlrover_restore_open(context_, &restore);
    if (result == DLROVER_E_NOT_FOUND) return 0;
    check(result, "dlrover_restore_open");
    std::uint64_t step = static_cast<std::uint64_t>(dlrover_restore_step(restore));
    const void *ledger = nullptr;
    std::uint64_t bytes = 0;
    check(dlrover_restore_ledger(restore, &ledger, &bytes), "dlrover_restore_ledger");
    if (bytes != sizeof step || std::memcmp(ledger, &step, sizeof step) != 0)
        fail(exit_violation, "the ledger is not of step %lu", step);
    restore_plate(restore, plate);
    if (!ballast_.empty()) check_ballast(restore, step);
    dlrover_restore_close(restore);
    return step;
}

void Checkpoints::restore_plate(const dlrover_restore *restore, Plate &plate) {
    std::uint64_t rows_found = 0;
    for (std::uint64_t i = 0; i < dlrover_restore_count(restore); ++i) {
        dlrover_chunk chunk{};
        const void *data = nullptr;
        std::uint64_t bytes = 0;
        check(dlrover_restore_chunk(restore, i, &chunk, &data, &bytes), "dlrover_restore_chunk");
        if (std::strcmp(chunk.name, "plate") != 0) continue;
        std::uint64_t begin = chunk.global_offset[0], rows = chunk.local_shape[0];
        if (chunk.ndim != 2 || chunk.local_shape[1] != plate.size() || begin < plate.first_row() ||
            begin + rows > plate.first_row() + std::uint64_t{plate.rows()} ||
            bytes != rows * plate.size() * sizeof(double))
            fail(exit_violation, "rows %lu to %lu are not this rank's", begin, begin + rows);
        std::memcpy(plate.row(static_cast<std::int64_t>(begin - plate.first_row())), data, bytes);
        rows_found += rows;
    }
    if (rows_found != plate.rows()) fail(exit_violation, "%lu of %u rows restored", rows_found, plate.rows());
}

void Checkpoints::check_ballast(const dlrover_restore *restore, std::uint64_t step) {
    dlrover_chunk chunk{};
    const void *data = nullptr;
    std::uint64_t bytes = 0;
    check(dlrover_restore_find(restore, "ballast", &chunk, &data, &bytes), "dlrover_restore_find");
    fill_ballast(step);
    if (bytes != ballast_.size() * sizeof(std::uint64_t) || std::memcmp(data, ballast_.data(), bytes) != 0)
        fail(exit_violation, "the ballast is not of step %lu", step);
}

void Checkpoints::fill_ballast(std::uint64_t step) {
    for (std::uint64_t i = 0; i < ballast_.size(); ++i) ballast_[i] = ballast_word(step, i);
}

int Checkpoints::add_plate(dlrover_save *save, const Plate &plate) {
    for (std::uint32_t b = 0; b < blocks; ++b) {
        std::uint32_t begin = plate.rows() * b / blocks, end = plate.rows() * (b + 1) / blocks;
        if (begin == end) continue;
        dlrover_chunk chunk{};
        chunk.name = "plate";
        chunk.dtype = DLROVER_FLOAT64;
        chunk.ndim = 2;
        chunk.global_shape[0] = chunk.global_shape[1] = chunk.local_shape[1] = plate.size();
        chunk.global_offset[0] = plate.first_row() + begin;
        chunk.local_shape[0] = end - begin;
        std::uint64_t size = std::uint64_t{end - begin} * plate.size() * sizeof(double);
        if (int e = dlrover_save_add(save, &chunk, plate.row(begin), size); e != DLROVER_OK) return e;
    }
    return DLROVER_OK;
}

int Checkpoints::add_ballast(dlrover_save *save) {
    if (ballast_.empty()) return DLROVER_OK;
    dlrover_chunk chunk{};
    chunk.name = "ballast";
    chunk.dtype = DLROVER_UINT64;
    chunk.ndim = 2;
    chunk.global_shape[0] = world_.world_size;
    chunk.global_offset[0] = world_.rank;
    chunk.local_shape[0] = 1;
    chunk.global_shape[1] = chunk.local_shape[1] = ballast_.size();
    return dlrover_save_add(save, &chunk, ballast_.data(), ballast_.size() * sizeof(std::uint64_t));
}

void Checkpoints::save(const Plate &plate, std::uint64_t step, PhaseFile &phase) {
    fill_ballast(step);
    phase.enter(Phase::copy);
    dlrover_save *save = nullptr;
    int e = dlrover_save_begin(context_, step, bytes(plate), &save);
    if (e != DLROVER_OK) return give_up_save(e);
    e = add_plate(save, plate);
    if (e == DLROVER_OK) e = add_ballast(save);
    if (e == DLROVER_OK) e = dlrover_save_ledger(save, &step, sizeof step);
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
