// SPDX-License-Identifier: Apache-2.0
#include "agent/nonblocking_writer.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "agent/files.h"

namespace dlrover::agent {
namespace {

constexpr std::size_t most_on_its_way = 256 << 10;

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

/// The call's while one is under way, else the loop's.
struct NonblockingWriter::Flight {
    std::string data;
    std::size_t written = 0;
};

NonblockingWriter::NonblockingWriter(Loop &loop, int fd, Loop::OnTime on_room)
    : loop_(loop), on_room_(std::move(on_room)), fd_(fd), kind_(Kind::file), aside_(loop) {
    if (!can_poll(fd)) {
        flight_ = std::make_shared<Flight>();
        aside_.start_early();
        return;
    }
    kind_ = is_socket(fd) ? Kind::socket : Kind::shared;
    if (kind_ == Kind::socket) return;
    own_.reset(::open(("/proc/self/fd/" + std::to_string(fd)).c_str(),
                      O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (!own_) return;
    fd_ = own_.get();
    kind_ = Kind::nonblocking;
}

NonblockingWriter::~NonblockingWriter() {
    await_room(false);
}

NonblockingWriter::Outcome NonblockingWriter::write_file(std::string_view data, std::size_t &written) {
    if (aside_.busy()) return Outcome::full;
    if (flight_->written < flight_->data.size()) return Outcome::broken;
    flight_->data = data.substr(0, most_on_its_way);
    flight_->written = 0;
    written = flight_->data.size();
    aside_.run([fd = fd_, flight = flight_] { flight->written = write_all(fd, flight->data); },
               [this] {
                   if (awaited_) on_room_();
               });
    return Outcome::wrote;
}

NonblockingWriter::Outcome NonblockingWriter::write(std::string_view data, std::size_t &written) {
    written = 0;
    if (kind_ == Kind::file) return write_file(data, written);
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

std::string NonblockingWriter::take_back() {
    if (!flight_ || aside_.busy()) return {};
    std::string rest = flight_->data.substr(flight_->written);
    *flight_ = {};
    return rest;
}

bool NonblockingWriter::idle() const {
    return !aside_.busy();
}

void NonblockingWriter::await_room(bool on) {
    if (on == std::exchange(awaited_, on) || kind_ == Kind::file) return;
    if (!on) return loop_.forget(fd_);
    if (!loop_.watch(fd_, EPOLLOUT, [this](std::uint32_t) { on_room_(); }).ok())
        awaited_ = false;  // /dev/null and its like: never full
}

bool NonblockingWriter::wait_for_room(Loop::Time deadline) {
    if (kind_ == Kind::file) return aside_.wait(deadline);
    auto left = std::chrono::ceil<Loop::Duration>(deadline - Loop::now()).count();
    pollfd p{fd_, POLLOUT, 0};
    return left > 0 && ::poll(&p, 1, static_cast<int>(left)) != 0;
}

}  // namespace dlrover::agent
