// SPDX-License-Identifier: Apache-2.0
// heat: an iterative solver that survives the death of any of its processes. See README.md.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "examples/heat/checkpoint.h"
#include "examples/heat/failure.h"
#include "examples/heat/field_file.h"
#include "examples/heat/neighbours.h"
#include "examples/heat/options.h"
#include "examples/heat/phase.h"
#include "examples/heat/plate.h"

using namespace heat;

namespace {

std::uint32_t environment_number(const char *name) {
    const char *value = std::getenv(name);
    return value ? static_cast<std::uint32_t>(std::strtoul(value, nullptr, 10)) : 0;
}

/// DLROVER_GENERATION is TERM:NUMBER; 0 without an agent.
GenerationId environment_generation() {
    const char *value = std::getenv("DLROVER_GENERATION");
    const char *colon = value ? std::strchr(value, ':') : nullptr;
    if (colon == nullptr) return {};
    return {std::strtoull(value, nullptr, 10), std::strtoull(colon + 1, nullptr, 10)};
}

void run_steps(const Options &o, std::uint64_t first, Plate &plate, Neighbours &neighbours,
               Checkpoints &checkpoints, PhaseFile &phase) {
    for (std::uint64_t step = first + 1; step <= o.steps; ++step) {
        const auto next = std::chrono::steady_clock::now() + std::chrono::microseconds(o.step_us);
        phase.enter(Phase::step);
        neighbours.exchange(plate);
        plate.advance();
        if (o.step_us) std::this_thread::sleep_until(next);
        checkpoints.report(step);
        phase.completed(step);
        if (o.save_every && step % o.save_every == 0) checkpoints.save(plate, step, phase);
    }
}

void finish(const Options &o, const Plate &plate, Neighbours &neighbours, const Checkpoints &checkpoints,
            std::uint64_t first) {
    std::vector<double> field = neighbours.gather(plate);
    if (!field.empty()) {
        if (!o.out.empty()) write_field(o.out, field);
        std::printf("heat: %lu steps, last start from step %lu, %lu saves, %lu missed, checksum %016lx\n",
                    o.steps, first, checkpoints.saved(), checkpoints.skipped(),
                    checksum(field.data(), field.size() * sizeof(double)));
        std::fflush(stdout);
    }
    neighbours.wait_for_root();
}

}  // namespace

int main(int argc, char **argv) {
    Options o = parse_options(argc, argv);
    set_failure_rank(environment_number("RANK"));
    PhaseFile phase(o.phase_dir, environment_number("RANK"), environment_generation(), o.older_may_live);
    phase.enter(environment_number("TORCHELASTIC_RESTART_COUNT") > 0 ? Phase::restart : Phase::startup);

    Checkpoints checkpoints(o.ballast_mb);
    const dlrover_world &w = checkpoints.world();
    if (w.world_size == 0 || o.size < 3 * w.world_size)
        fail(exit_usage, "--size %u is too small for %u ranks", o.size, w.world_size);
    Plate plate(o.size, w.rank, w.world_size);
    checkpoints.prepare(plate);
    if (o.save_every) checkpoints.make_room();
    const std::uint64_t first = checkpoints.restore();
    Neighbours neighbours({w.rank, w.world_size, w.generation_term, w.generation_number},
                          o.hang_on_peer_loss);
    phase.connected(first > 0 ? static_cast<std::int64_t>(first) : -1);

    run_steps(o, first, plate, neighbours, checkpoints, phase);
    phase.enter(Phase::finish);
    finish(o, plate, neighbours, checkpoints, first);
    phase.enter(Phase::done);
    return 0;
}
