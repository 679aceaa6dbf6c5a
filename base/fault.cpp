// SPDX-License-Identifier: Apache-2.0
#include "base/fault.h"

#ifdef DLROVER_FAULT_INJECTION

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace dlrover {

void fault_point(const char *name) noexcept {
    static std::atomic<unsigned long> passed{0};
    const char *wanted = std::getenv("DLROVER_FAULT");
    if (wanted == nullptr) return;
    const char *colon = std::strchr(wanted, ':');
    std::size_t length = colon != nullptr ? static_cast<std::size_t>(colon - wanted) : std::strlen(wanted);
    if (std::strlen(name) != length || std::strncmp(wanted, name, length) != 0) return;
    char *rest = nullptr;
    unsigned long nth = colon != nullptr ? std::strtoul(colon + 1, &rest, 10) : 1;
    bool stop = rest != nullptr && std::strcmp(rest, ":stop") == 0;
    if (passed.fetch_add(1) + 1 == nth) ::kill(::getpid(), stop ? SIGSTOP : SIGKILL);
}

}  // namespace dlrover

#endif
