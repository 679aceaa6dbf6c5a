// SPDX-License-Identifier: Apache-2.0
#include "agent/signature.h"

#include <cctype>
#include <vector>

namespace dlrover::agent {
namespace {

constexpr std::string_view traceback_head = "Traceback (most recent call last)";

std::vector<std::string_view> lines_of(std::string_view text) {
    std::vector<std::string_view> lines;
    while (!text.empty()) {
        std::size_t end = text.find_first_of("\n\r");
        std::string_view line = text.substr(0, end);
        text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
        if (line.find_first_not_of(" \t") != std::string_view::npos) lines.push_back(line);
    }
    return lines;
}

bool is_word(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
}

/// Length of a word that stands for a number: decimal, 0x..., or hexadecimal with a digit in it (8 and more).
std::size_t number_length(std::string_view text) {
    std::size_t n = 0;
    bool digit = false, hex = true;
    for (; n < text.size() && is_word(text[n]); ++n) {
        auto c = static_cast<unsigned char>(text[n]);
        digit = digit || std::isdigit(c);
        hex = hex && (std::isxdigit(c) || (n == 1 && c == 'x' && text[0] == '0'));
    }
    bool prefixed = n > 2 && text[0] == '0' && text[1] == 'x';
    return digit && hex && (prefixed || n >= 8) ? n : 0;
}

std::uint64_t hash(std::uint64_t state, std::string_view text) {
    for (char c : text) state = (state ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
    return state;
}

void append_utf8_or_mark(std::string &out, std::string_view hex) {
    unsigned code = 0;
    for (char c : hex) {
        auto u = static_cast<unsigned char>(c);
        code = code * 16 + (std::isdigit(u) ? u - '0' : (std::tolower(u) - 'a' + 10) & 15);
    }
    out += code != 0 && code < 0x80 ? static_cast<char>(code) : '?';
}

/// The JSON string that begins after an opening quote.
std::string unescape(std::string_view json) {
    std::string out;
    for (std::size_t i = 0; i < json.size() && json[i] != '"'; ++i) {
        if (json[i] != '\\' || i + 1 >= json.size()) {
            out += json[i];
            continue;
        }
        char c = json[++i];
        if (c == 'u') {
            append_utf8_or_mark(out, json.substr(i + 1, 4));
            i += 4;
        } else {
            out += c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' || c == 'b' || c == 'f' ? ' ' : c;
        }
    }
    return out;
}

std::string tail_text(std::string_view text) {
    if (text.size() > max_error_text_bytes) {
        text.remove_prefix(text.size() - max_error_text_bytes);
        std::size_t line = text.find('\n');
        if (line != std::string_view::npos && line + 1 < text.size()) text.remove_prefix(line + 1);
    }
    return std::string(text);
}

/// The traceback begins the text where there is one: it says more than what follows it.
std::string stderr_text(std::string_view tail) {
    std::size_t at = tail.rfind(traceback_head);
    if (at == std::string_view::npos || tail.size() - at > max_error_text_bytes) return tail_text(tail);
    return std::string(tail.substr(at));
}

std::string place_of(std::string_view error_file, std::string_view stack, std::string_view stderr_tail) {
    if (!error_file.empty()) {
        std::string place = traceback_place(stack);
        return place.empty() ? normalise_line(json_string(error_file, "message")) : place;
    }
    if (std::string place = traceback_place(stderr_tail); !place.empty()) return place;
    auto lines = lines_of(stderr_tail);
    return lines.empty() ? std::string() : normalise_line(lines.back());
}

}  // namespace

std::string normalise_line(std::string_view line) {
    std::string out;
    for (std::size_t i = 0; i < line.size();) {
        auto c = static_cast<unsigned char>(line[i]);
        bool starts_word = i == 0 || !is_word(line[i - 1]);
        std::size_t n = starts_word ? number_length(line.substr(i)) : 0;
        if (n == 0)
            while (i + n < line.size() && std::isdigit(static_cast<unsigned char>(line[i + n]))) ++n;
        if (n != 0) {
            out += '#';
            i += n;
        } else {
            if (!std::isspace(c)) out += line[i];
            if (std::isspace(c) && (out.empty() || out.back() != ' ')) out += ' ';
            ++i;
        }
    }
    return out;
}

std::string traceback_place(std::string_view text) {
    std::size_t at = text.rfind(traceback_head);
    if (at == std::string_view::npos) return {};
    std::string_view frame, exception;
    for (std::string_view line : lines_of(text.substr(at + traceback_head.size()))) {
        if (line.starts_with("  File \"")) {
            frame = line;
            exception = {};
        } else if (!frame.empty() && exception.empty() && line[0] != ' ' && line[0] != '\t') {
            exception = line;
        }
    }
    if (frame.empty()) return {};
    // The line number belongs to the place; addresses and values in the exception's text do not.
    return std::string(frame) + "\n" + normalise_line(exception);
}

std::string json_string(std::string_view json, std::string_view key) {
    std::string quoted = "\"" + std::string(key) + "\"";
    for (std::size_t at = json.find(quoted); at != std::string_view::npos; at = json.find(quoted, at)) {
        at += quoted.size();
        std::size_t colon = json.find_first_not_of(" \t\n\r", at);
        if (colon == std::string_view::npos || json[colon] != ':') continue;
        std::size_t value = json.find_first_not_of(" \t\n\r", colon + 1);
        if (value != std::string_view::npos && json[value] == '"') return unescape(json.substr(value + 1));
    }
    return {};
}

FailureReport describe_failure(int wait_status, std::string_view error_file, std::string_view stderr_tail) {
    FailureReport report;
    std::string stack = json_string(error_file, "py_callstack");
    std::uint64_t state = 0xcbf29ce484222325ULL;
    state = hash(state, std::to_string(wait_status));
    report.signature = hash(state, place_of(error_file, stack, stderr_tail));
    if (report.signature == 0) report.signature = 1;  // 0 is "none"
    std::string message = json_string(error_file, "message");
    if (!stack.empty())
        report.text = tail_text(stack);
    else
        report.text = message.empty() ? stderr_text(stderr_tail) : tail_text(message);
    return report;
}

}  // namespace dlrover::agent
