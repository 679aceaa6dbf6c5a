// SPDX-License-Identifier: Apache-2.0
#include "common/log.h"

#include <spdlog/details/log_msg.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/sinks/syslog_sink.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>

#include "base/unique_fd.h"
#include "common/log_queue.h"
#include "common/repeat_filter.h"

namespace dlrover::log {
namespace {

constexpr const char *journal_socket = "/run/systemd/journal/socket";
constexpr std::size_t max_text_bytes = 8192;

spdlog::level::level_enum to_spdlog(Level level) {
    switch (level) {
        case Level::debug:
            return spdlog::level::debug;
        case Level::info:
            return spdlog::level::info;
        case Level::warning:
            return spdlog::level::warn;
        case Level::error:
            return spdlog::level::err;
    }
    return spdlog::level::err;
}

Level from_spdlog(spdlog::level::level_enum level) {
    if (level <= spdlog::level::debug) return Level::debug;
    if (level == spdlog::level::info) return Level::info;
    return level == spdlog::level::warn ? Level::warning : Level::error;
}

/// The journal's native datagram protocol. A record's logger name is the group ("12.0") or empty.
class JournalSink : public spdlog::sinks::base_sink<std::mutex> {
  public:
    static Result<std::shared_ptr<JournalSink>> create(std::string program) {
        UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
        if (!fd) return Status::from_errno("socket");
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::strncpy(address.sun_path, journal_socket, sizeof address.sun_path - 1);
        if (::connect(fd.get(), reinterpret_cast<sockaddr *>(&address), sizeof address) != 0)
            return Status::from_errno(journal_socket);
        return std::shared_ptr<JournalSink>(new JournalSink(std::move(fd), std::move(program)));
    }

  protected:
    void sink_it_(const spdlog::details::log_msg &message) override {
        std::string_view job(message.logger_name.data(), message.logger_name.size());
        std::string_view text(message.payload.data(), message.payload.size());
        std::string record = journal_record(from_spdlog(message.level), program_, job, text);
        // A full or vanished journal must not stop the daemon: the line is lost.
        (void)::send(fd_.get(), record.data(), record.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    void flush_() override {}

  private:
    JournalSink(UniqueFd fd, std::string program) : fd_(std::move(fd)), program_(std::move(program)) {}
    UniqueFd fd_;
    std::string program_;
};

/// systemd tells a service which stream its stderr is: JOURNAL_STREAM=DEVICE:INODE.
bool stderr_is_journal() {
    const char *stream = std::getenv("JOURNAL_STREAM");
    struct stat st {};
    if (!stream || ::fstat(2, &st) != 0) return false;
    return std::string(stream) == std::to_string(st.st_dev) + ":" + std::to_string(st.st_ino);
}

struct State {
    std::mutex mutex;
    spdlog::sink_ptr sink;    ///< none: the process ends
    bool job_in_text = true;  ///< the sink has no field for it, and is not the journal
    RepeatFilter filter;
};

std::atomic<Level> current_level{Level::info};
std::array<std::atomic<std::uint64_t>, 4> counts{};

spdlog::sink_ptr make_stderr_sink() {
    auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
    sink->set_pattern("%Y-%m-%dT%H:%M:%S.%e %l: %v");
    return sink;
}

/// Never destroyed: other threads may log until the process ends.
State &state() {
    static State *const instance = [] {
        auto *s = new State;
        s->sink = make_stderr_sink();
        return s;
    }();
    return *instance;
}

Status install(const Options &options) {
    State &s = state();
    Target target = options.target;
    if (target == Target::automatic) target = stderr_is_journal() ? Target::journal : Target::standard_error;
    spdlog::sink_ptr sink;
    if (target == Target::journal) {
        auto journal = JournalSink::create(options.program);
        if (!journal) return journal.take_status();
        sink = *journal;
    } else if (target == Target::syslog) {
        auto syslog =
            std::make_shared<spdlog::sinks::syslog_sink_mt>(options.program, LOG_PID, LOG_DAEMON, true);
        syslog->set_pattern("%v");
        sink = syslog;
    } else {
        sink = make_stderr_sink();
    }
    std::lock_guard lock(s.mutex);
    s.sink = std::move(sink);
    s.job_in_text = target != Target::journal;
    return {};
}

void emit(State &s, Level level, const std::string &job, const std::string &text) {
    std::string line = s.job_in_text && !job.empty() ? "job " + job + ": " + text : text;
    s.sink->log(spdlog::details::log_msg(spdlog::string_view_t(job.data(), job.size()), to_spdlog(level),
                                         spdlog::string_view_t(line.data(), line.size())));
    s.sink->flush();
}

void write_line(Level level, const std::string &job, std::string_view raw) {
    std::string text = one_line(raw.substr(0, max_text_bytes));
    if (raw.size() > max_text_bytes) text += " [cut]";
    auto now =
        std::chrono::duration_cast<RepeatFilter::Time>(std::chrono::steady_clock::now().time_since_epoch());
    State &s = state();
    std::lock_guard lock(s.mutex);
    auto verdict = s.filter.admit(job, text, now);
    if (!verdict.pass || !s.sink) return;
    if (verdict.held_back > 0)
        text += " (" + std::to_string(verdict.held_back) + " times since it was last written)";
    if (verdict.last) text += " (held back from now on, for a minute)";
    emit(s, level, job, text);
}

void write_guarded(Level level, const std::string &job, std::string_view text) noexcept {
    counts[static_cast<std::size_t>(level)].fetch_add(1, std::memory_order_relaxed);
    if (!enabled(level)) return;
    try {
        write_line(level, job, text);
    } catch (...) {
        static const char lost[] = "log: a line could not be written\n";
        (void)!::write(2, lost, sizeof lost - 1);
    }
}

/// Bytes of the well-formed UTF-8 sequence at the start of `text`; 0: none.
std::size_t utf8_length(std::string_view text) {
    auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    std::size_t n = byte(0) < 0x80                      ? 1
                    : byte(0) >= 0xc2 && byte(0) < 0xe0 ? 2
                    : byte(0) >= 0xe0 && byte(0) < 0xf0 ? 3
                    : byte(0) >= 0xf0 && byte(0) < 0xf5 ? 4
                                                        : 0;
    if (n == 0 || n > text.size()) return 0;
    for (std::size_t i = 1; i < n; ++i)
        if ((byte(i) & 0xc0) != 0x80) return 0;
    return n;
}

}  // namespace

std::string one_line(std::string_view text) {
    std::string line;
    line.reserve(text.size());
    while (!text.empty()) {
        std::size_t n = utf8_length(text);
        bool control = n == 1 && (static_cast<unsigned char>(text[0]) < 0x20 || text[0] == 0x7f);
        // U+0080 to U+009F are control characters too.
        control = control || (n == 2 && text[0] == '\xc2' && static_cast<unsigned char>(text[1]) < 0xa0);
        if (n == 0 || control)
            line += '?';
        else
            line.append(text.substr(0, n));
        text.remove_prefix(n == 0 ? 1 : n);
    }
    return line;
}

std::string journal_record(Level level, std::string_view program, std::string_view job,
                           std::string_view text) {
    const char *priorities[] = {"7", "6", "4", "3"};
    std::string record = "PRIORITY=";
    record += priorities[static_cast<std::size_t>(level)];
    record += "\nSYSLOG_IDENTIFIER=" + one_line(program);
    if (!job.empty()) record += "\nDLROVER_JOB=" + one_line(job);
    record += "\nMESSAGE=" + one_line(text) + "\n";
    return record;
}

Status start(const Options &options) {
    current_level.store(options.level, std::memory_order_relaxed);
    try {
        return install(options);
    } catch (const std::exception &e) {
        return Status(Code::unavailable, std::string("log: ") + e.what());
    }
}

void write_behind() {
    State &s = state();
    std::lock_guard lock(s.mutex);
    if (!s.job_in_text) return;
    s.sink = make_queued_sink(std::move(s.sink));
    // A sink for what comes later than that would wait for the same lock as a line that is stuck.
    std::atexit([] {
        spdlog::sink_ptr queued;
        std::lock_guard guard(state().mutex);
        std::swap(state().sink, queued);
    });
}

bool enabled(Level level) noexcept {
    return level >= current_level.load(std::memory_order_relaxed);
}

void write(Level level, std::string_view text) noexcept {
    write_guarded(level, {}, text);
}

void write(Level level, Job about, std::string_view text) noexcept {
    // At most 21 characters; cannot throw except for memory, which std::string's small buffer avoids.
    char name[24];
    char *end = std::to_chars(name, name + 10, about.job.value()).ptr;
    *end++ = '.';
    end = std::to_chars(end, name + sizeof name, about.step.value()).ptr;
    try {
        write_guarded(level, std::string(name, end), text);
    } catch (...) {
        write_guarded(level, {}, text);
    }
}

std::uint64_t count(Level level) noexcept {
    std::uint64_t sum = 0;
    for (auto i = static_cast<std::size_t>(level); i < counts.size(); ++i) sum += counts[i].load();
    return sum;
}

}  // namespace dlrover::log
