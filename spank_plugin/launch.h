// SPDX-License-Identifier: Apache-2.0
// The agent in front of the user's command.
#pragma once

#include <string>
#include <string_view>

#include "base/unique_fd.h"
#include "spank_plugin/spank_api.h"

namespace dlrover::spank {

/// An agent program of the same kind, which the user started himself.
bool is_own_agent(std::string_view program);

/// The agent's file, close-on-exec: execve of /proc/self/fd/N opens it before descriptors are closed, also
/// from within a container's file system. None where it is not there, or is a script (whose interpreter could
/// not open it again).
UniqueFd open_agent(const std::string &path);

/// "/proc/self/fd/N", or `path` where the descriptor is missing.
std::string agent_program(const UniqueFd &agent, const std::string &path);

/// What execve of the user's command would get. "srun --bcast=DIR/" leaves DIR/ as the program, and
/// slurmstepd appends the file's name only to the first word.
std::string command_name(std::string_view argv0, std::uint32_t job_id, std::uint32_t step_id,
                         const std::string &node);

/// In task_init: makes the task's command start with `program`, the user's own argv[0] being `command`. Where
/// Slurm can not lengthen argv, `command` goes to DLROVER_AGENT_ARGV0.
bool put_agent_in_front(spank_t handle, const std::string &program, const std::string &command);

}  // namespace dlrover::spank
