// SPDX-License-Identifier: Apache-2.0
#include "base/fault.h"

#ifdef DLROVER_FAULT_INJECTION

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace dlrover {
namespace {

/// Whether `wanted` begins with the name and a colon, or is the name.
bool is_of(const char *wanted, const char *name) noexcept {
    std::size_t length = std::strcspn(wanted, ":");
    return std::strlen(name) == length && std::strncmp(wanted, name, length) == 0;
}

/// What the file holds, without a line's end; empty: there is none.
void read_order(const char *file, char *text, std::size_t size) noexcept {
    text[0] = '\0';
    int fd = ::open(file, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    ssize_t n = ::read(fd, text, size - 1);
    ::close(fd);
    text[n > 0 ? n : 0] = '\0';
    text[std::strcspn(text, "\n")] = '\0';
}

/// Whether the order is for this point and host, and nobody else has taken it.
bool take_order(const char *name) noexcept {
    const char *file = std::getenv("DLROVER_FAULT_ORDER");
    if (file == nullptr) return false;
    char text[256], host[HOST_NAME_MAX + 1] = "", here[512], taken[PATH_MAX];
    read_order(file, text, sizeof text);
    ::gethostname(host, sizeof host - 1);
    std::snprintf(here, sizeof here, "%s %s", name, host);
    if (std::strcmp(text, name) != 0 && std::strcmp(text, here) != 0) return false;
    int length = std::snprintf(taken, sizeof taken, "%s.%s.%d", file, host, ::getpid());
    return static_cast<std::size_t>(length) < sizeof taken && ::rename(file, taken) == 0;
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
    int before = errno;
    if (take_order(name)) ::kill(::getpid(), SIGKILL);
    errno = before;
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
