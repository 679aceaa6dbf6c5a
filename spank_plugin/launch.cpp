// SPDX-License-Identifier: Apache-2.0
#include "spank_plugin/launch.h"

#include <fcntl.h>

#include <cstring>

#include "config.h"

#ifdef HAVE_SPANK_PREPEND_TASK_ARGV
#pragma weak spank_prepend_task_argv
#endif

namespace dlrover::spank {
namespace {

constexpr const char *argv0_variable = "DLROVER_AGENT_ARGV0";

/// The array that execve will get; null where Slurm does not show it.
char **live_argv(spank_t handle) {
    int argc = 0;
    char **argv = nullptr;
    bool shown = spank_get_item(handle, S_JOB_ARGV, &argc, &argv) == ESPANK_SUCCESS;
    return shown && argc >= 1 && argv && argv[0] ? argv : nullptr;
}

bool replace_first_word(spank_t handle, const std::string &word) {
    char **argv = live_argv(handle);
    char *copy = argv ? ::strdup(word.c_str()) : nullptr;  // this process ends in execve
    if (copy) argv[0] = copy;
    return copy != nullptr;
}

}  // namespace

bool is_own_agent(std::string_view program) {
    return program.substr(program.rfind('/') + 1) == "dlrover-run";  // npos + 1 is 0
}

UniqueFd open_agent(const std::string &path) {
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
    char head[2] = {};
    if (fd &&
        (::pread(fd.get(), head, sizeof head, 0) != sizeof head || std::memcmp(head, "#!", sizeof head) == 0))
        fd.reset();
    return fd;
}

std::string agent_program(const UniqueFd &agent, const std::string &path) {
    return agent ? "/proc/self/fd/" + std::to_string(agent.get()) : path;
}

std::string command_name(std::string_view argv0, std::uint32_t job_id, std::uint32_t step_id,
                         const std::string &node) {
    std::string name(argv0);
    if (name.ends_with('/'))
        name += "slurm_bcast_" + std::to_string(job_id) + "." + std::to_string(step_id) + "_" + node;
    return name;
}

bool put_agent_in_front(spank_t handle, const std::string &program, const std::string &command) {
#ifdef HAVE_SPANK_PREPEND_TASK_ARGV
    if (spank_prepend_task_argv) {
        const char *words[] = {program.c_str(), nullptr};
        spank_unsetenv(handle, argv0_variable);
        return replace_first_word(handle, command) &&
               spank_prepend_task_argv(handle, 1, words) == ESPANK_SUCCESS;
    }
#endif
    // 22.05: the array can not grow.
    return spank_setenv(handle, argv0_variable, command.c_str(), 1) == ESPANK_SUCCESS &&
           replace_first_word(handle, program);
}

}  // namespace dlrover::spank
