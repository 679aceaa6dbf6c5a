// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/client_watch.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>

namespace dlrover::pmix {
namespace {

Time steady_now() {
    return std::chrono::duration_cast<Time>(std::chrono::steady_clock::now().time_since_epoch());
}

struct Client {
    ino_t socket = 0;  ///< a descriptor's number may come again
    std::optional<std::uint32_t> rank;
    Conversation conversation;
};

class Watch {
  public:
    void add(int fd) {
        std::lock_guard lock(mutex_);
        clients_[fd] = Client{socket_of(fd), {}, {}};
        highest_ = std::max(highest_.load(), fd);
    }
    void note_rank(int fd, std::uint32_t rank) {
        with(fd, [&](Client &client) { client.rank = rank; });
    }
    void read(int fd, std::span<const std::uint8_t> bytes) {
        with(fd, [&](Client &client) { client.conversation.received(bytes, steady_now()); });
    }
    void written(int fd, const iovec *parts, int count, std::size_t bytes) {
        with(fd, [&](Client &client) {
            for (int i = 0; i < count && bytes > 0; ++i) {
                std::size_t n = std::min(bytes, parts[i].iov_len);
                client.conversation.sent({static_cast<const std::uint8_t *>(parts[i].iov_base), n});
                bytes -= n;
            }
        });
    }
    std::optional<std::vector<ClientWait>> waiting() {
        std::lock_guard lock(mutex_);
        std::erase_if(clients_, [](const auto &one) { return socket_of(one.first) != one.second.socket; });
        std::vector<ClientWait> found;
        for (const auto &[fd, client] : clients_)
            if (client.conversation.has_limited())
                return std::nullopt;
            else if (auto wait = client.conversation.wait())
                found.push_back({client.rank, *wait});
        return found;
    }

  private:
    static ino_t socket_of(int fd) {
        struct stat st {};
        return ::fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode) ? st.st_ino : 0;
    }
    /// Most reads are of no client.
    template <typename Use>
    void with(int fd, Use use) {
        if (fd < 0 || fd > highest_) return;
        std::lock_guard lock(mutex_);
        if (auto it = clients_.find(fd); it != clients_.end()) use(it->second);
    }

    std::mutex mutex_;
    std::map<int, Client> clients_;
    std::atomic<int> highest_{-1};
};

/// Never destroyed: libpmix's threads run to the end.
Watch &watch() {
    static Watch &one = *new Watch;
    return one;
}

/// Of libpmix's thread: the last one of which it has read a part of a handshake.
thread_local int last_shaken = -1;

}  // namespace

void watch_client(int fd) {
    watch().add(fd);
}

void note_connected(std::uint32_t rank) {
    if (last_shaken >= 0) watch().note_rank(last_shaken, rank);
}

std::optional<std::vector<ClientWait>> clients_that_wait() {
    return watch().waiting();
}

namespace {

ssize_t watched_read(int fd, void *to, std::size_t size) {
    ssize_t n = ::syscall(SYS_read, fd, to, size);
    if (n > 0) watch().read(fd, {static_cast<const std::uint8_t *>(to), static_cast<std::size_t>(n)});
    return n;
}

ssize_t watched_writev(int fd, const iovec *parts, int count) {
    ssize_t n = ::syscall(SYS_writev, fd, parts, count);
    if (n > 0) watch().written(fd, parts, count, static_cast<std::size_t>(n));
    return n;
}

/// libpmix shakes hands by recv() and send().
ssize_t watched_recv(int fd, void *to, std::size_t size, int flags) {
    last_shaken = fd;
    return ::syscall(SYS_recvfrom, fd, to, size, flags, nullptr, nullptr);
}

}  // namespace
}  // namespace dlrover::pmix

#pragma GCC visibility push(default)
extern "C" {
ssize_t read(int fd, void *to, std::size_t size) {
    return dlrover::pmix::watched_read(fd, to, size);
}

ssize_t writev(int fd, const iovec *parts, int count) {
    return dlrover::pmix::watched_writev(fd, parts, count);
}

ssize_t recv(int fd, void *to, std::size_t size, int flags) {
    return dlrover::pmix::watched_recv(fd, to, size, flags);
}
}
#pragma GCC visibility pop
