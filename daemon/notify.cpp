// SPDX-License-Identifier: Apache-2.0
#include "daemon/notify.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "base/units.h"

namespace dlrover::daemon {
namespace {

std::string variable(const char *name) {
    const char *value = std::getenv(name);
    return value ? value : "";
}

std::uint64_t number(const char *name) {
    auto value = parse_uint(variable(name), 0, ~std::uint64_t{0} >> 1);
    return value ? *value : 0;
}

bool meant_for_us(const char *pid_variable) {
    return variable(pid_variable).empty() || number(pid_variable) == static_cast<std::uint64_t>(::getpid());
}

}  // namespace

Notifier::Notifier() : address_(variable("NOTIFY_SOCKET")) {
    if (address_.size() < 2 || address_.size() >= sizeof(sockaddr_un::sun_path)) return;
    if (address_[0] != '/' && address_[0] != '@') return;
    socket_.reset(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (meant_for_us("WATCHDOG_PID") && number("WATCHDOG_USEC") > 0)
        watchdog_ = std::chrono::milliseconds(number("WATCHDOG_USEC") / 1000 / 3 + 1);
}

void Notifier::send(const std::string &state, int fd) const {
    if (!socket_) return;
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    std::memcpy(to.sun_path, address_.data(), address_.size());
    if (address_[0] == '@') to.sun_path[0] = '\0';
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    iovec iov{const_cast<char *>(state.data()), state.size()};
    msghdr header{};
    header.msg_name = &to;
    header.msg_namelen = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address_.size());
    header.msg_iov = &iov;
    header.msg_iovlen = 1;
    if (fd >= 0) {
        header.msg_control = control;
        header.msg_controllen = sizeof control;
        cmsghdr *c = CMSG_FIRSTHDR(&header);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof fd);
        std::memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    (void)!::sendmsg(socket_.get(), &header, MSG_NOSIGNAL);
}

std::vector<std::pair<std::string, UniqueFd>> take_listen_fds() {
    std::vector<std::pair<std::string, UniqueFd>> fds;
    if (variable("LISTEN_PID").empty() || !meant_for_us("LISTEN_PID")) return fds;
    std::string names = variable("LISTEN_FDNAMES");
    std::size_t at = 0;
    for (std::uint64_t i = 0; i < number("LISTEN_FDS"); ++i) {
        std::size_t end = std::min(names.find(':', at), names.size());
        int fd = 3 + static_cast<int>(i);
        ::fcntl(fd, F_SETFD, FD_CLOEXEC);
        fds.emplace_back(at <= names.size() ? names.substr(at, end - at) : "", UniqueFd(fd));
        at = end + 1;
    }
    for (const char *name : {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"}) ::unsetenv(name);
    return fds;
}

}  // namespace dlrover::daemon
