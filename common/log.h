// SPDX-License-Identifier: Apache-2.0
// One line of log. Log edges, not levels: say that something began or ended, not that it still is so. The
// function that first knows what went wrong logs it; callers only pass the Status on.
//
// Thread: any. Before start() lines go to stderr. Never throws.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/ids.h"
#include "base/status.h"

namespace dlrover::log {

enum class Level : std::uint8_t { debug, info, warning, error };
enum class Target : std::uint8_t {
    automatic,  ///< the journal where stderr is connected to it, else stderr
    standard_error,
    journal,
    syslog
};

/// The group a line is about; in the journal it is the field DLROVER_JOB, elsewhere it stands before the
/// text.
struct Job {
    JobId job;
    StepId step;
};

struct Options {
    std::string program;
    Level level = Level::info;
    Target target = Target::automatic;
};

/// Once, early. Fails (and stays with stderr) when the target can not be reached.
Status start(const Options &options);
/// Whether lines of this level are written: ask before building an expensive text.
bool enabled(Level level) noexcept;

void write(Level level, std::string_view text) noexcept;
void write(Level level, Job about, std::string_view text) noexcept;

inline void debug(std::string_view text) noexcept {
    write(Level::debug, text);
}
inline void info(std::string_view text) noexcept {
    write(Level::info, text);
}
inline void warning(std::string_view text) noexcept {
    write(Level::warning, text);
}
inline void error(std::string_view text) noexcept {
    write(Level::error, text);
}
inline void debug(Job about, std::string_view text) noexcept {
    write(Level::debug, about, text);
}
inline void info(Job about, std::string_view text) noexcept {
    write(Level::info, about, text);
}
inline void warning(Job about, std::string_view text) noexcept {
    write(Level::warning, about, text);
}
inline void error(Job about, std::string_view text) noexcept {
    write(Level::error, about, text);
}

/// Lines written to this level or above so far by this process; tests check that none came unannounced.
std::uint64_t count(Level level) noexcept;

/// Text of one datagram in the journal's native format. Exposed for its test.
std::string journal_record(Level level, std::string_view program, std::string_view job,
                           std::string_view text);
/// `text` as one line: control characters and broken UTF-8 become '?'. What users say can not forge a line.
std::string one_line(std::string_view text);

}  // namespace dlrover::log
