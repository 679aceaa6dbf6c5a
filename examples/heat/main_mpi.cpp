// SPDX-License-Identifier: Apache-2.0
// heat-mpi: heat as an MPI program. Edge rows go by MPI; memory is protected by dlrover.h, saved and restored
// as a whole. After a failure all ranks are started again, and go on from the newest complete step. See
// README.md.
#include <dlrover.h>
#include <mpi.h>

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <thread>
#include <vector>

#include "examples/heat/failure.h"
#include "examples/heat/field_file.h"
#include "examples/heat/options.h"
#include "examples/heat/phase.h"
#include "examples/heat/plate.h"

using namespace heat;

namespace {

/// What is protected, by number.
enum Id : int { plate_id, step_id };

void check(int result, const char *what) {
    if (result == DLROVER_OK) return;
    fail(result == DLROVER_E_STALE ? exit_stale : exit_failed, "%s: %s", what, dlrover_error_text());
}

void protect(dlrover_context *context, Plate &plate) {
    const std::uint64_t whole[] = {plate.size(), plate.size()}, begin[] = {plate.first_row(), 0},
                        rows[] = {plate.rows(), plate.size()};
    check(dlrover_protect_array(context, plate_id, "plate", plate.row(0), DLROVER_FLOAT64, 2, whole, begin,
                                rows),
          "dlrover_protect_array");
}

/// Steps already done; 0: from the beginning.
std::uint64_t restart(dlrover_context *context, const std::uint64_t &step) {
    int result = dlrover_restart(context);
    if (result == DLROVER_E_NOT_FOUND) return 0;
    check(result, "dlrover_restart");
    return step;
}

/// Training goes on where no slot was free for it, or the daemon is away for a moment.
void save(dlrover_context *context, Plate &plate, std::uint64_t step) {
    protect(context, plate);  // the rows move with every step
    int result = dlrover_checkpoint(context, step);
    bool missed =
        result == DLROVER_E_SKIPPED || result == DLROVER_E_UNAVAILABLE || result == DLROVER_E_TIMEOUT;
    if (!missed) check(result, "dlrover_checkpoint");
}

void exchange(Plate &plate, int rank, int ranks) {
    int up = rank > 0 ? rank - 1 : MPI_PROC_NULL, down = rank + 1 < ranks ? rank + 1 : MPI_PROC_NULL;
    auto width = static_cast<int>(plate.size());
    std::int64_t rows = plate.rows();
    MPI_Sendrecv(plate.row(0), width, MPI_DOUBLE, up, 0, plate.row(rows), width, MPI_DOUBLE, down, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(plate.row(rows - 1), width, MPI_DOUBLE, down, 1, plate.row(-1), width, MPI_DOUBLE, up, 1,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

/// The whole field at rank 0, in row order; empty elsewhere.
std::vector<double> gather(const Plate &plate, int rank, int ranks) {
    std::vector<int> counts, begins;
    for (int r = 0; r < ranks; ++r) {
        auto place = static_cast<std::uint32_t>(r), of = static_cast<std::uint32_t>(ranks);
        std::uint32_t begin = slab_begin(plate.size(), place, of);
        begins.push_back(static_cast<int>(begin * plate.size()));
        counts.push_back(static_cast<int>((slab_begin(plate.size(), place + 1, of) - begin) * plate.size()));
    }
    std::vector<double> field(rank == 0 ? std::size_t{plate.size()} * plate.size() : 0);
    MPI_Gatherv(plate.row(0), counts[static_cast<std::size_t>(rank)], MPI_DOUBLE, field.data(), counts.data(),
                begins.data(), MPI_DOUBLE, 0, MPI_COMM_WORLD);
    return field;
}

void run(const Options &o, dlrover_context *context, int rank, int ranks) {
    dlrover_world world{};
    check(dlrover_get_world(context, &world), "dlrover_get_world");
    set_failure_rank(world.rank);
    if (static_cast<int>(world.rank) != rank || static_cast<int>(world.world_size) != ranks)
        fail(exit_usage,
             "MPI has rank %d of %d, dlrover rank %u of %u: start it with srun --dlrover-pmix=yes", rank,
             ranks, world.rank, world.world_size);
    if (o.size < 3 * world.world_size)
        fail(exit_usage, "--size %u is too small for %u ranks", o.size, world.world_size);
    PhaseFile phase(o.phase_dir, world.rank, {world.generation_term, world.generation_number},
                    o.older_may_live);
    phase.enter(Phase::startup);
    Plate plate(o.size, world.rank, world.world_size);
    std::uint64_t step = 0;
    protect(context, plate);
    check(
        dlrover_protect_array(context, step_id, "step", &step, DLROVER_UINT64, 0, nullptr, nullptr, nullptr),
        "dlrover_protect_array");
    const std::uint64_t first = restart(context, step);
    phase.connected(first > 0 ? static_cast<std::int64_t>(first) : -1);
    for (step = first + 1; step <= o.steps; ++step) {
        const auto next = std::chrono::steady_clock::now() + std::chrono::microseconds(o.step_us);
        phase.enter(Phase::step);
        exchange(plate, rank, ranks);
        plate.advance();
        if (o.step_us) std::this_thread::sleep_until(next);
        if (int e = dlrover_report_step(context, step); e == DLROVER_E_STALE) check(e, "dlrover_report_step");
        phase.completed(step);
        if (o.save_every && step % o.save_every == 0) save(context, plate, step);
    }
    std::vector<double> field = gather(plate, rank, ranks);
    phase.enter(Phase::done);
    if (rank > 0) return;
    if (!o.out.empty()) write_field(o.out, field);
    std::printf("heat: %" PRIu64 " steps, last start from step %" PRIu64 ", checksum %016" PRIx64 "\n",
                o.steps, first, checksum(field.data(), field.size() * sizeof(double)));
}

}  // namespace

int main(int argc, char **argv) {
    int rank = 0, ranks = 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    dlrover_context *context = nullptr;
    check(dlrover_open(&context), "dlrover_open");
    run(parse_options(argc, argv), context, rank, ranks);
    dlrover_close(context);
    MPI_Finalize();
    return 0;
}
