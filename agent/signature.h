// SPDX-License-Identifier: Apache-2.0
// What a failed worker says about itself: a text for people and a number that is equal for "the same failure
// at the same place".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dlrover::agent {

struct FailureReport {
    std::uint64_t signature = 0;
    std::string text;  ///< at most max_error_text_bytes
};

inline constexpr std::size_t max_error_text_bytes = 8 << 10;

/// `error_file`: the content of TORCHELASTIC_ERROR_FILE, or empty. `stderr_tail`: the newest of its stderr.
/// The signature covers the exit status and, by the first that is there: the error file's exception and last
/// frame; the last traceback's in stderr; the last line of stderr with numbers taken out.
FailureReport describe_failure(int wait_status, std::string_view error_file, std::string_view stderr_tail);

/// Content of the first string named `key` in a JSON text, unescaped (code points outside ASCII become '?');
/// empty when there is none.
std::string json_string(std::string_view json, std::string_view key);

/// Numbers, hexadecimal numbers and runs of blanks made equal: "rank 3 at 0x7f12" -> "rank # at #".
std::string normalise_line(std::string_view line);

/// Last "File ..., line N, in f" line and the exception line of the last traceback; empty when there is none.
std::string traceback_place(std::string_view text);

}  // namespace dlrover::agent
