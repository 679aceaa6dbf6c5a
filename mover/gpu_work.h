// SPDX-License-Identifier: Apache-2.0
// A moment's work for each GPU that this process sees: products of matrices whose outcome is known.
// (DLRover's node check multiplies matrices with the job's own torch; this needs nothing but NVIDIA's
// driver.)
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "base/status.h"
#include "mover/gpu_driver.h"

namespace dlrover::mover {

struct GpuVerdict {
    enum class Kind {
        sound,
        untried,  ///< there are none, or nothing can be said against them: `text`
        failed    ///< `text` names the first that is broken, and how
    };
    Kind kind = Kind::untried;
    unsigned devices = 0;
    std::chrono::microseconds work{0};  ///< of the slowest, without what getting ready took
    std::string text;
};

/// How many devices CUDA has to find: those of CUDA_VISIBLE_DEVICES, where that is a list of Slurm's making:
/// that of SLURM_STEP_GPUS, or as long and counted from 0. 0: nobody can say. Either may be null.
unsigned promised_gpus(const char *visible, const char *given);
/// For people; of one that has not failed.
std::string describe(const GpuVerdict &verdict);

/// One line, and back.
std::string to_line(const GpuVerdict &verdict);
Result<GpuVerdict> parse_verdict(std::string_view line);

/// All devices at once, each on a thread. Threads, and the contexts that they have made, are left as they
/// are: for a process that ends. Failed has one that miscalculates, tells an error of its own or does not
/// come to an end of its work; so are some that are missing of those that Slurm has given to the step.
/// Whatever keeps a device from its work (its driver, other users, limits) says nothing against it. `side`:
/// of the matrices, in entries; a multiple of 256.
GpuVerdict work_on_gpus(const Result<GpuDriver> &driver, unsigned promised,
                        std::chrono::steady_clock::time_point deadline, unsigned side = 1024);

}  // namespace dlrover::mover
