// SPDX-License-Identifier: Apache-2.0
#include "lib/environment.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/units.h"
#include "proto/local_codec.h"

namespace dlrover::lib {
namespace {

std::string text_of(const char *name, const char *otherwise = "") {
    const char *value = std::getenv(name);
    return value != nullptr && *value != '\0' ? value : otherwise;
}

/// Leaves `out` alone when the variable is not set.
template <typename Int>
Status read_number(const char *name, Int &out, std::uint64_t low = 0, std::uint64_t high = UINT32_MAX) {
    std::string value = text_of(name);
    if (value.empty()) return {};
    auto number = parse_uint(value, low, high);
    if (!number) return std::move(number.take_status()).with_context(name);
    out = static_cast<Int>(*number);
    return {};
}

/// Who does not know his rank would take himself for the only one, and all of them would share one rank's
/// files.
Status check_alone() {
    if (!text_of("RANK").empty()) return {};
    for (const char *name : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
        std::uint32_t tasks = 1;
        if (!read_number(name, tasks).ok() || tasks < 2) continue;
        return Status(Code::invalid_argument,
                      "RANK is not set, and this is one of " + std::to_string(tasks) + " processes (" + name +
                          "): start the program with srun --dlrover-elastic, or set RANK and WORLD_SIZE");
    }
    return {};
}

Status read_ranks(Environment &e) {
    DLROVER_TRY(check_alone());
    DLROVER_TRY(read_number("RANK", e.rank));
    DLROVER_TRY(read_number("WORLD_SIZE", e.world_size, 1));
    DLROVER_TRY(read_number("LOCAL_RANK", e.local_rank));
    DLROVER_TRY(read_number("LOCAL_WORLD_SIZE", e.local_world_size, 1));
    DLROVER_TRY(read_number("GROUP_RANK", e.group_rank));
    DLROVER_TRY(read_number("GROUP_WORLD_SIZE", e.group_world_size, 1));
    DLROVER_TRY(read_number("TORCHELASTIC_RESTART_COUNT", e.restart_count));
    if (e.rank >= e.world_size) return Status(Code::invalid_argument, "RANK is not below WORLD_SIZE");
    return {};
}

Status read_generation(GenerationId &out) {
    std::string text = text_of("DLROVER_GENERATION", "0:0");
    auto colon = text.find(':');
    Status wrong(Code::invalid_argument, "DLROVER_GENERATION is not TERM:NUMBER");
    if (colon == std::string::npos) return wrong;
    auto term = parse_uint(text.substr(0, colon), 0, UINT64_MAX);
    auto number = parse_uint(text.substr(colon + 1), 0, UINT64_MAX);
    if (!term.ok() || !number.ok()) return wrong;
    out = GenerationId{Term(*term), *number};
    return {};
}

Status read_group(Environment &e) {
    std::uint32_t job = 0, step = 0;
    DLROVER_TRY(read_number("DLROVER_JOB_ID", job));
    DLROVER_TRY(read_number("DLROVER_STEP_ID", step));
    DLROVER_TRY(read_generation(e.generation));
    e.job = JobId(job);
    e.step = StepId(step);
    return {};
}

unsigned processors() {
    cpu_set_t set;
    if (::sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    return static_cast<unsigned>(std::max(1, CPU_COUNT(&set)));
}

}  // namespace

Result<Environment> read_environment() {
    Environment e;
    DLROVER_TRY(read_ranks(e));
    e.managed = text_of("DLROVER_MANAGED") == "1";
    if (e.managed) DLROVER_TRY(read_group(e));
    e.socket = text_of("DLROVER_SOCKET", proto::default_socket_path);
    e.lineage = text_of("DLROVER_LINEAGE");
    e.local_dir = text_of("DLROVER_LOCAL_DIR", "dlrover-checkpoints");
    e.copy_threads = std::clamp(processors() / e.local_world_size, 1u, 8u);
    DLROVER_TRY(read_number("DLROVER_COPY_THREADS", e.copy_threads, 1, 64));
    DLROVER_TRY(read_number("DLROVER_VERIFY_PARTS", e.verify_parts, 0, 1));
    std::uint32_t timeout_ms = 10000;
    DLROVER_TRY(read_number("DLROVER_TIMEOUT_MS", timeout_ms, 1, 3600000));
    e.timeout = std::chrono::milliseconds(timeout_ms);
    return e;
}

}  // namespace dlrover::lib
