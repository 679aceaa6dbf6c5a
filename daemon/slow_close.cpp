// SPDX-License-Identifier: Apache-2.0
#include "daemon/slow_close.h"

#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/signals_blocked.h"
#include "common/log.h"

namespace dlrover::daemon {
namespace {

struct Waiting {
    UniqueFd socket;
    std::function<void()> closed;
};

/// Precondition: nothing more can come. Descriptors come with a byte at least.
bool has_unread(int socket) {
    int bytes = 0;
    return ::ioctl(socket, FIONREAD, &bytes) != 0 || bytes > 0;
}

}  // namespace

struct SlowCloser::Shared {
    std::mutex mutex;
    EventLoop *loop;                                       ///< null: it has ended
    std::map<std::uint32_t, std::deque<Waiting>> of_user;  ///< a user who is in it has a thread
    std::size_t waiting = 0;

    explicit Shared(EventLoop *l) : loop(l) {}
    /// Of one user, until none is left.
    static void run(const std::shared_ptr<Shared> &shared, std::uint32_t uid) {
        std::unique_lock lock(shared->mutex);
        for (;;) {
            auto user = shared->of_user.find(uid);
            if (user->second.empty()) {
                shared->of_user.erase(user);
                return;
            }
            Waiting next = std::move(user->second.front());
            user->second.pop_front();
            lock.unlock();
            next.socket.reset();
            lock.lock();
            --shared->waiting;
            if (shared->loop) shared->loop->post(std::move(next.closed));
        }
    }
};

SlowCloser::SlowCloser(EventLoop &loop) : shared_(std::make_shared<Shared>(&loop)) {}

SlowCloser::~SlowCloser() {
    std::lock_guard lock(shared_->mutex);
    shared_->loop = nullptr;
}

void SlowCloser::close(std::uint32_t uid, UniqueFd socket, std::function<void()> closed) {
    (void)::shutdown(socket.get(), SHUT_RD);
    if (!has_unread(socket.get())) {
        socket.reset();
        return closed();
    }
    (void)::shutdown(socket.get(), SHUT_RDWR);
    std::lock_guard lock(shared_->mutex);
    auto [user, fresh] = shared_->of_user.try_emplace(uid);
    user->second.push_back({std::move(socket), std::move(closed)});
    ++shared_->waiting;
    if (!fresh) return;
    try {
        SignalsBlocked guard;
        std::thread([shared = shared_, uid] { Shared::run(shared, uid); }).detach();
    } catch (const std::system_error &error) {
        log::error(std::string("no thread to close a connection: ") + error.what());
        shared_->loop->post(std::move(user->second.front().closed));
        shared_->of_user.erase(user);  // closed here, however long that takes
        --shared_->waiting;
    }
}

std::size_t SlowCloser::waiting() const {
    std::lock_guard lock(shared_->mutex);
    return shared_->waiting;
}

std::optional<std::uint32_t> SlowCloser::most() const {
    std::lock_guard lock(shared_->mutex);
    auto number = [](const auto &user) { return user.second.size(); };
    auto most = std::ranges::max_element(shared_->of_user, {}, number);
    if (most == shared_->of_user.end()) return std::nullopt;
    return most->first;
}

}  // namespace dlrover::daemon
