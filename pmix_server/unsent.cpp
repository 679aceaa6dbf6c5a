// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/unsent.h"

#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

namespace dlrover::pmix {
namespace {

bool is_internet_socket(int fd) {
    int family = 0;
    socklen_t size = sizeof family;
    return ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size) == 0 &&
           (family == AF_INET || family == AF_INET6);
}

/// For want of room at the peer's. What is sent counts no more: its acknowledgement may take 40 ms.
bool has_held_back(int fd) {
    int bytes = 0;
    return ::ioctl(fd, SIOCOUTQNSD, &bytes) == 0 && bytes > 0;
}

bool is_connected(int fd) {
    sockaddr_storage peer{};
    socklen_t size = sizeof peer;
    return ::getpeername(fd, reinterpret_cast<sockaddr *>(&peer), &size) == 0;
}

/// What is waited for of a socket of the Internet's families.
using Looks = bool (*)(int fd, unsigned events);

/// Of proc(5)'s fdinfo: "tfd: NUMBER events: MASK data: ...", the mask in hexadecimal.
bool any_waited_for(std::istream &fdinfo, Looks is) {
    for (std::string word; fdinfo >> word;) {
        if (word != "tfd:") continue;
        int fd = -1;
        std::string label, mask;
        if (!(fdinfo >> fd >> label >> mask) || label != "events:") return false;
        unsigned events = 0;
        std::from_chars(mask.data(), mask.data() + mask.size(), events, 16);
        if (is_internet_socket(fd) && is(fd, events)) return true;
    }
    return false;
}

/// Before Linux 5.14 it is root's where the process is not dumpable (helper/process.h), and closed to itself.
std::ifstream open_fdinfo(const std::string &fd) {
    std::string path = "/proc/self/fdinfo/" + fd;
    std::ifstream file(path);
    if (file.is_open() || ::prctl(PR_GET_DUMPABLE) != 0) return file;
    if (::prctl(PR_SET_DUMPABLE, 1) != 0) return file;
    file.open(path);
    ::prctl(PR_SET_DUMPABLE, 0);
    return file;
}

bool any_waited_for(Looks is) {
    std::error_code error;
    for (const auto &entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
        auto target = std::filesystem::read_symlink(entry, error);
        if (error || target != "anon_inode:[eventpoll]") continue;
        auto fdinfo = open_fdinfo(entry.path().filename().string());
        if (any_waited_for(fdinfo, is)) return true;
    }
    return false;
}

}  // namespace

bool has_unsent() {
    return any_waited_for(
        [](int fd, unsigned events) { return (events & EPOLLOUT) != 0 || has_held_back(fd); });
}

bool has_clients() {
    return any_waited_for([](int fd, unsigned) { return is_connected(fd); });
}

}  // namespace dlrover::pmix
