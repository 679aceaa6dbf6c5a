// SPDX-License-Identifier: Apache-2.0
#include "cli/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/units.h"

namespace dlrover::cli {
namespace {

constexpr std::size_t bar_width = 24;
constexpr std::chrono::milliseconds redraw_interval(100);

/// A line that wraps could not be drawn again.
std::string cut_to_terminal(std::string line) {
    struct winsize size = {};
    if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 && line.size() >= size.ws_col)
        line.resize(size.ws_col - 1u);
    return line;
}

}  // namespace

std::string progress_text(const std::string &what, std::uint64_t done, std::uint64_t total,
                          std::chrono::microseconds elapsed) {
    using Seconds = std::chrono::duration<double>;
    double share = total == 0 ? 1.0 : std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
    auto filled = static_cast<std::size_t>(share * bar_width);
    char percent[16];
    std::snprintf(percent, sizeof percent, "%3d %%", static_cast<int>(share * 100));
    std::string text = what + "  [" + std::string(filled, '#') + std::string(bar_width - filled, ' ') + "] " +
                       percent + "  " + format_size_bytes(done) + " of " + format_size_bytes(total);
    double seconds = Seconds(elapsed).count();
    if (seconds < 0.5 || done == 0) return text;
    double rate = static_cast<double>(done) / seconds;
    auto left = Seconds(static_cast<double>(total - std::min(done, total)) / rate);
    return text + ", " + format_size_bytes(static_cast<std::uint64_t>(rate)) + "/s, " +
           format_duration(std::chrono::duration_cast<std::chrono::microseconds>(left)) + " left";
}

Progress::Progress(std::string what, std::uint64_t total)
    : what_(std::move(what)),
      total_(total),
      terminal_(::isatty(STDERR_FILENO) == 1),
      start_(Clock::now()),
      last_(start_) {}

void Progress::add(std::uint64_t bytes) {
    done_ += bytes;
    if (!terminal_) return;
    auto now = Clock::now();
    if (now - last_ < redraw_interval) return;
    last_ = now;
    drawn_ = true;
    auto elapsed = std::chrono::duration_cast<std::chrono::microseconds>(now - start_);
    std::string line = "\r\033[K" + cut_to_terminal(progress_text(what_, done_, total_, elapsed));
    std::fwrite(line.data(), 1, line.size(), stderr);
    std::fflush(stderr);
}

void Progress::clear() {
    if (!drawn_) return;
    drawn_ = false;
    std::fputs("\r\033[K", stderr);
    std::fflush(stderr);
}

}  // namespace dlrover::cli
