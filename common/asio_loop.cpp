// SPDX-License-Identifier: Apache-2.0
#include "common/asio_loop.h"

#include <fcntl.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstring>

#include "base/unique_fd.h"
#include "common/log.h"

namespace dlrover {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

class TimerRegistration final : public EventLoop::Registration {
  public:
    TimerRegistration(asio::io_context &io, EventLoop::Time delay, EventLoop::Task task)
        : timer_(io, delay), alive_(std::make_shared<bool>(true)) {
        timer_.async_wait([alive = alive_, task = std::move(task)](error_code error) {
            if (!error && *alive) task();
        });
    }
    ~TimerRegistration() override { *alive_ = false; }

  private:
    asio::steady_timer timer_;
    std::shared_ptr<bool> alive_;
};

/// Waits on a duplicate: epoll takes a descriptor once only, and a socket is watched for both directions.
/// Where no duplicate can be had (too many open files) it is tried again until there is one.
class FdRegistration final : public EventLoop::Registration {
  public:
    using Wait = asio::posix::stream_descriptor::wait_type;
    FdRegistration(asio::io_context &io, int fd, Wait wait, EventLoop::Task task)
        : shared_(std::make_shared<Shared>(io, fd, wait, std::move(task))) {
        open(shared_);
    }
    ~FdRegistration() override {
        shared_->alive = false;
        error_code ignored;
        shared_->descriptor.close(ignored);
    }

  private:
    static constexpr std::chrono::milliseconds try_again{100};
    struct Shared {
        Shared(asio::io_context &io, int f, Wait w, EventLoop::Task t)
            : descriptor(io), again(io), fd(f), wait(w), task(std::move(t)) {}
        asio::posix::stream_descriptor descriptor;
        asio::steady_timer again;
        int fd;
        Wait wait;
        EventLoop::Task task;
        bool alive = true, failed = false;
    };
    static void open(const std::shared_ptr<Shared> &shared) {
        UniqueFd copy(::fcntl(shared->fd, F_DUPFD_CLOEXEC, 3));
        if (!copy) return open_later(shared, std::strerror(errno));
        error_code error;
        shared->descriptor.assign(copy.get(), error);
        if (error) return open_later(shared, error.message());
        (void)copy.release();
        arm(shared);
    }
    static void open_later(const std::shared_ptr<Shared> &shared, const std::string &why) {
        if (!shared->failed) log::error("a descriptor can not be watched for now: " + why);
        shared->failed = true;
        shared->again.expires_after(try_again);
        shared->again.async_wait([shared](error_code error) {
            if (!error && shared->alive) open(shared);
        });
    }
    static void arm(const std::shared_ptr<Shared> &shared) {
        shared->descriptor.async_wait(shared->wait, [shared](error_code error) {
            if (error || !shared->alive) return;
            shared->task();
            if (shared->alive) arm(shared);
        });
    }
    std::shared_ptr<Shared> shared_;
};

}  // namespace

struct AsioLoop::State {
    asio::io_context io{1};
    asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
    std::unique_ptr<asio::signal_set> signals;
    std::function<void(int)> on_signal;

    void wait_signal() {
        signals->async_wait([this](error_code error, int number) {
            if (error) return;
            on_signal(number);
            wait_signal();
        });
    }
};

AsioLoop::AsioLoop() : state_(std::make_unique<State>()) {}
AsioLoop::~AsioLoop() = default;

EventLoop::Time AsioLoop::now() const {
    return std::chrono::duration_cast<Time>(std::chrono::steady_clock::now().time_since_epoch());
}

void AsioLoop::post(Task task) {
    asio::post(state_->io, std::move(task));
}

EventLoop::Handle AsioLoop::after(Time delay, Task task) {
    return std::make_unique<TimerRegistration>(state_->io, delay, std::move(task));
}

EventLoop::Handle AsioLoop::when_readable(int fd, Task task) {
    return std::make_unique<FdRegistration>(state_->io, fd, FdRegistration::Wait::wait_read, std::move(task));
}

EventLoop::Handle AsioLoop::when_writable(int fd, Task task) {
    return std::make_unique<FdRegistration>(state_->io, fd, FdRegistration::Wait::wait_write,
                                            std::move(task));
}

void AsioLoop::on_signals(std::initializer_list<int> signals, std::function<void(int)> on_signal) {
    state_->signals = std::make_unique<asio::signal_set>(state_->io);
    for (int number : signals) state_->signals->add(number);
    state_->on_signal = std::move(on_signal);
    state_->wait_signal();
}

void AsioLoop::run() {
    state_->io.run();
}
void AsioLoop::stop() {
    state_->io.stop();
}

}  // namespace dlrover
