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

/// In task_init: makes the task's command start with `program`. Where Slurm can not lengthen argv the user's
/// own argv[0] goes to DLROVER_AGENT_ARGV0.
bool put_agent_in_front(spank_t handle, const std::string &program);

}  // namespace dlrover::spank
