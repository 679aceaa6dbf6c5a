// SPDX-License-Identifier: Apache-2.0
#include "common/log_queue.h"

#include <spdlog/details/log_msg_buffer.h>
#include <spdlog/sinks/sink.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace dlrover::log {
namespace {

using Line = spdlog::details::log_msg_buffer;
constexpr auto patience_at_end = std::chrono::seconds(1);

/// Shared with the thread, which may outlive the sink.
struct Queue {
    Queue(spdlog::sink_ptr sink, std::size_t most) : behind(std::move(sink)), most_waiting(most) {}
    spdlog::sink_ptr behind;
    const std::size_t most_waiting;
    std::mutex mutex;
    std::condition_variable more, idle;
    std::deque<Line> waiting;
    std::size_t lost = 0;
    bool writing = false, over = false;
};

void write(Queue &queue, const spdlog::details::log_msg &line) {
    try {
        queue.behind->log(line);
        queue.behind->flush();
    } catch (...) {
        // Nobody is left to be told.
    }
}

void write_lost(Queue &queue, std::size_t lost) {
    std::string text = std::to_string(lost) + " lines of log were lost: what takes them did not keep up";
    write(queue,
          {spdlog::string_view_t(), spdlog::level::warn, spdlog::string_view_t(text.data(), text.size())});
}

void run(const std::shared_ptr<Queue> &queue) {
    std::unique_lock lock(queue->mutex);
    while (true) {
        queue->more.wait(lock, [&] { return queue->over || !queue->waiting.empty(); });
        if (queue->waiting.empty()) return;
        Line line = std::move(queue->waiting.front());
        queue->waiting.pop_front();
        std::size_t lost = queue->waiting.empty() ? std::exchange(queue->lost, 0) : 0;
        queue->writing = true;
        lock.unlock();
        write(*queue, line);
        if (lost > 0) write_lost(*queue, lost);
        lock.lock();
        queue->writing = false;
        if (queue->waiting.empty()) queue->idle.notify_all();
    }
}

class QueuedSink final : public spdlog::sinks::sink {
  public:
    QueuedSink(spdlog::sink_ptr behind, std::size_t most_waiting)
        : queue_(std::make_shared<Queue>(std::move(behind), most_waiting)),
          thread_([queue = queue_] { run(queue); }) {}
    ~QueuedSink() override {
        std::unique_lock lock(queue_->mutex);
        queue_->over = true;
        queue_->more.notify_all();
        bool written = queue_->idle.wait_for(lock, patience_at_end,
                                             [this] { return queue_->waiting.empty() && !queue_->writing; });
        lock.unlock();
        written ? thread_.join() : thread_.detach();
    }

    void log(const spdlog::details::log_msg &line) override {
        std::lock_guard lock(queue_->mutex);
        if (queue_->waiting.size() >= queue_->most_waiting) {
            ++queue_->lost;
            return;
        }
        queue_->waiting.emplace_back(line);
        queue_->more.notify_one();
    }
    void flush() override {}
    void set_pattern(const std::string &pattern) override { queue_->behind->set_pattern(pattern); }
    void set_formatter(std::unique_ptr<spdlog::formatter> formatter) override {
        queue_->behind->set_formatter(std::move(formatter));
    }

  private:
    std::shared_ptr<Queue> queue_;
    std::thread thread_;
};

}  // namespace

std::shared_ptr<spdlog::sinks::sink> make_queued_sink(std::shared_ptr<spdlog::sinks::sink> behind,
                                                      std::size_t most_waiting) {
    return std::make_shared<QueuedSink>(std::move(behind), most_waiting);
}

}  // namespace dlrover::log
