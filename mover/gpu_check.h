// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include "mover/gpu_work.h"

namespace dlrover::mover {

/// The most that dlrover-gpu-check takes before it judges.
inline constexpr std::chrono::seconds gpu_work_limit{10};

/// Has the step's GPUs on this node work for a moment, in a process of its own (dlrover-gpu-check): what CUDA
/// takes of memory is free again afterwards, and this process waits for no driver that hangs. untried: the
/// step has none, or the program is not there, is killed or says nothing by the deadline. Blocks. Not from
/// two threads at a time. `program`: its path, else it is beside this process's own.
GpuVerdict check_gpus(std::chrono::steady_clock::time_point deadline, const std::string &program = {});

/// Slurm says so, or whoever set CUDA_VISIBLE_DEVICES. On nodes whose GPUs Slurm does not know of nobody
/// does.
bool has_gpus_of_its_own();

}  // namespace dlrover::mover
