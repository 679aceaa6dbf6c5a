// SPDX-License-Identifier: Apache-2.0
#include "agent/oom.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace dlrover::agent {
namespace {

using File = std::unique_ptr<std::FILE, int (*)(std::FILE *)>;

File open_text(const std::string &path) {
    return File(std::fopen(path.c_str(), "re"), std::fclose);
}

bool exists(const std::string &path) {
    return static_cast<bool>(open_text(path));
}

/// From the lines "ID:CONTROLLERS:/path" of /proc/self/cgroup.
std::string find_counter() {
    File file = open_text("/proc/self/cgroup");
    char line[4096];
    std::string unified;
    while (file && std::fgets(line, sizeof line, file.get())) {
        line[std::strcspn(line, "\n")] = '\0';
        char *controllers = std::strchr(line, ':');
        char *path = controllers ? std::strchr(controllers + 1, ':') : nullptr;
        if (!path) continue;
        *path++ = '\0';
        if (std::strcmp(controllers + 1, "memory") == 0)
            return "/sys/fs/cgroup/memory" + std::string(path) + "/memory.oom_control";
        if (controllers[1] == '\0') unified = "/sys/fs/cgroup" + std::string(path) + "/memory.events";
    }
    return unified;
}

}  // namespace

OomCounter::OomCounter() : path_(find_counter()) {
    if (!exists(path_)) path_.clear();
    seen_ = read();
}

std::uint64_t OomCounter::read() const {
    if (path_.empty()) return 0;
    File file = open_text(path_);
    char line[256];
    while (file && std::fgets(line, sizeof line, file.get()))
        if (std::strncmp(line, "oom_kill ", 9) == 0) return std::strtoull(line + 9, nullptr, 10);
    return 0;
}

std::uint64_t OomCounter::newly_killed() {
    std::uint64_t now = read();
    std::uint64_t killed = now > seen_ ? now - seen_ : 0;
    seen_ = now;
    return killed;
}

}  // namespace dlrover::agent
