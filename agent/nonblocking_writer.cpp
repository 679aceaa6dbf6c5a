// SPDX-License-Identifier: Apache-2.0
#include "agent/nonblocking_writer.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <string>

namespace dlrover::agent {
namespace {

bool can_poll(int fd) {
    struct stat st {};
    return ::fstat(fd, &st) == 0 && (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode) || S_ISCHR(st.st_mode));
}

bool is_socket(int fd) {
    struct stat st {};
    return ::fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode);
}

/// Room for at least PIPE_BUF bytes, or an error that write() will name.
bool has_room(int fd) {
    pollfd p{fd, POLLOUT, 0};
    return ::poll(&p, 1, 0) > 0;
}

}  // namespace

NonblockingWriter::NonblockingWriter(int fd) : fd_(fd), kind_(Kind::file) {
    if (!can_poll(fd)) return;
    kind_ = is_socket(fd) ? Kind::socket : Kind::shared;
    if (kind_ == Kind::socket) return;
    own_.reset(::open(("/proc/self/fd/" + std::to_string(fd)).c_str(),
                      O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (!own_) return;
    fd_ = own_.get();
    kind_ = Kind::nonblocking;
}

NonblockingWriter::Outcome NonblockingWriter::write(std::string_view data, std::size_t &written) {
    written = 0;
    if (kind_ == Kind::shared && !has_room(fd_)) return Outcome::full;
    // A pipe with room takes PIPE_BUF bytes without waiting; more might wait.
    std::size_t size = kind_ == Kind::shared ? std::min<std::size_t>(data.size(), PIPE_BUF) : data.size();
    ssize_t n;
    do
        n = kind_ == Kind::socket ? ::send(fd_, data.data(), size, MSG_DONTWAIT | MSG_NOSIGNAL)
                                  : ::write(fd_, data.data(), size);
    while (n < 0 && errno == EINTR);
    if (n < 0) return errno == EAGAIN ? Outcome::full : Outcome::broken;
    written = static_cast<std::size_t>(n);
    return Outcome::wrote;
}

}  // namespace dlrover::agent
