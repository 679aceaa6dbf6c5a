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

/// 22.05: the array is the one that execve will get, and can not grow.
bool replace_first_word(spank_t handle, const std::string &program) {
    int argc = 0;
    char **argv = nullptr;
    if (spank_get_item(handle, S_JOB_ARGV, &argc, &argv) != ESPANK_SUCCESS || argc < 1 || !argv || !argv[0])
        return false;
    char *replacement = ::strdup(program.c_str());  // this process ends in execve
    if (!replacement || spank_setenv(handle, argv0_variable, argv[0], 1) != ESPANK_SUCCESS) {
        ::free(replacement);
        return false;
    }
    argv[0] = replacement;
    return true;
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

bool put_agent_in_front(spank_t handle, const std::string &program) {
#ifdef HAVE_SPANK_PREPEND_TASK_ARGV
    if (spank_prepend_task_argv) {
        const char *words[] = {program.c_str(), nullptr};
        spank_unsetenv(handle, argv0_variable);
        return spank_prepend_task_argv(handle, 1, words) == ESPANK_SUCCESS;
    }
#endif
    return replace_first_word(handle, program);
}

}  // namespace dlrover::spank
