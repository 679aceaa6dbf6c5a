// SPDX-License-Identifier: Apache-2.0
#include "base/fault.h"

#ifdef DLROVER_FAULT_INJECTION

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace dlrover {
namespace {

/// Whether `wanted` begins with the name and a colon, or is the name.
bool is_of(const char *wanted, const char *name) noexcept {
    std::size_t length = std::strcspn(wanted, ":");
    return std::strlen(name) == length && std::strncmp(wanted, name, length) == 0;
}

}  // namespace

int fault_error(const char *name) noexcept {
    const char *wanted = std::getenv("DLROVER_FAULT_ERROR");
    if (wanted == nullptr || !is_of(wanted, name)) return 0;
    const char *number = std::strchr(wanted, ':');
    const char *file = number != nullptr ? std::strchr(number + 1, ':') : nullptr;
    if (file == nullptr || ::access(file + 1, F_OK) != 0) return 0;
    return static_cast<int>(std::strtol(number + 1, nullptr, 10));
}

void fault_point(const char *name) noexcept {
    static std::atomic<unsigned long> passed{0};
    const char *wanted = std::getenv("DLROVER_FAULT");
    if (wanted == nullptr) return;
    if (!is_of(wanted, name)) return;
    const char *colon = std::strchr(wanted, ':');
    char *rest = nullptr;
    unsigned long nth = colon != nullptr ? std::strtoul(colon + 1, &rest, 10) : 1;
    bool stop = rest != nullptr && std::strcmp(rest, ":stop") == 0;
    if (passed.fetch_add(1) + 1 == nth) ::kill(::getpid(), stop ? SIGSTOP : SIGKILL);
}

}  // namespace dlrover

#endif
