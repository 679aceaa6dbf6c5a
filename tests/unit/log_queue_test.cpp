// SPDX-License-Identifier: Apache-2.0
#include "common/log_queue.h"

#include <spdlog/details/log_msg.h>
#include <spdlog/sinks/sink.h>

#include <boost/test/unit_test.hpp>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

using namespace dlrover;
using namespace std::chrono_literals;

namespace {

/// Shared with a thread that may stay in log() for ever.
struct Disk {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::string> lines;
    bool stuck = false, asked = false;
};

class DiskSink final : public spdlog::sinks::sink {
  public:
    explicit DiskSink(std::shared_ptr<Disk> disk) : disk_(std::move(disk)) {}
    void log(const spdlog::details::log_msg &line) override {
        std::unique_lock lock(disk_->mutex);
        disk_->asked = true;
        disk_->changed.notify_all();
        disk_->changed.wait(lock, [this] { return !disk_->stuck; });
        disk_->lines.emplace_back(line.payload.data(), line.payload.size());
    }
    void flush() override {}
    void set_pattern(const std::string &) override {}
    void set_formatter(std::unique_ptr<spdlog::formatter>) override {}

  private:
    std::shared_ptr<Disk> disk_;
};

struct Queued {
    std::shared_ptr<Disk> disk = std::make_shared<Disk>();
    std::shared_ptr<spdlog::sinks::sink> sink = log::make_queued_sink(std::make_shared<DiskSink>(disk), 4);

    void say(const std::string &text) {
        spdlog::string_view_t payload(text.data(), text.size());
        sink->log({spdlog::string_view_t(), spdlog::level::info, payload});
    }
    void stick(bool stuck) {
        std::lock_guard lock(disk->mutex);
        disk->stuck = stuck;
        disk->changed.notify_all();
    }
    void wait_until_stuck() {
        std::unique_lock lock(disk->mutex);
        BOOST_REQUIRE(disk->changed.wait_for(lock, 10s, [this] { return disk->asked; }));
    }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(log_queue, Queued)

BOOST_AUTO_TEST_CASE(lines_come_in_order_and_all_before_the_end) {
    for (int i = 0; i < 4; ++i) say(std::to_string(i));
    sink.reset();
    BOOST_TEST((disk->lines == std::vector<std::string>{"0", "1", "2", "3"}));
}

BOOST_AUTO_TEST_CASE(who_logs_does_not_wait_and_what_is_lost_is_counted) {
    stick(true);
    say("first");
    wait_until_stuck();
    for (int i = 0; i < 7; ++i) say(std::to_string(i));
    BOOST_TEST(disk->lines.empty());
    stick(false);
    sink.reset();
    BOOST_TEST((disk->lines ==
                std::vector<std::string>{"first", "0", "1", "2", "3",
                                         "3 lines of log were lost: what takes them did not keep up"}));
}

BOOST_AUTO_TEST_CASE(the_end_does_not_wait_for_a_disk_that_is_stuck) {
    stick(true);
    say("never");
    wait_until_stuck();
    sink.reset();
    BOOST_TEST(disk->lines.empty());
    stick(false);
}

BOOST_AUTO_TEST_SUITE_END()
