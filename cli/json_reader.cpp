// SPDX-License-Identifier: Apache-2.0
#include "cli/json_reader.h"

#include <algorithm>

#include "base/units.h"
#include "ckpt/storage_name.h"

namespace dlrover::cli {
namespace {

void append_utf8(std::string &out, std::uint32_t c) {
    auto tail = [&](unsigned shift) { out += static_cast<char>(0x80 | (c >> shift & 0x3f)); };
    if (c < 0x80) {
        out += static_cast<char>(c);
    } else if (c < 0x800) {
        out += static_cast<char>(0xc0 | c >> 6);
        tail(0);
    } else if (c < 0x10000) {
        out += static_cast<char>(0xe0 | c >> 12);
        tail(6);
        tail(0);
    } else {
        out += static_cast<char>(0xf0 | c >> 18);
        tail(12);
        tail(6);
        tail(0);
    }
}

}  // namespace

void JsonReader::skip_blanks() {
    text_.remove_prefix(std::min(text_.find_first_not_of(" \t\r\n"), text_.size()));
}

bool JsonReader::accept(char c) {
    skip_blanks();
    if (!ok_ || !text_.starts_with(c)) return false;
    text_.remove_prefix(1);
    return true;
}

bool JsonReader::at_end() {
    skip_blanks();
    return ok_ && text_.empty() && first_.empty();
}

void JsonReader::open(char bracket) {
    ok_ = accept(bracket);
    first_.push_back(true);
}

bool JsonReader::next(char bracket) {
    if (!ok_ || first_.empty()) return false;
    if (accept(bracket)) {
        first_.pop_back();
        return false;
    }
    ok_ = first_.back() || accept(',');
    first_.back() = false;
    return ok_;
}

bool JsonReader::next_key(std::string &key) {
    if (!next('}')) return false;
    key = string();
    ok_ = ok_ && accept(':');
    return ok_;
}

std::uint64_t JsonReader::number() {
    skip_blanks();
    std::string_view word = text_.substr(0, text_.find_first_not_of("0123456789"));
    auto value = parse_uint(word, 0, UINT64_MAX);
    ok_ = ok_ && value.ok() && (word.size() == 1 || word.front() != '0');
    text_.remove_prefix(ok_ ? word.size() : 0);
    return ok_ ? *value : 0;
}

std::string JsonReader::string() {
    std::string out;
    ok_ = accept('"');
    while (ok_ && !text_.starts_with('"')) {
        std::size_t plain = std::min(text_.find_first_of("\"\\"), text_.size());
        out += text_.substr(0, plain);
        text_.remove_prefix(plain);
        if (text_.empty())
            ok_ = false;
        else if (text_.front() == '\\')
            read_escape(out);
    }
    text_.remove_prefix(ok_ ? 1 : 0);
    ok_ = ok_ && ckpt::valid_utf8(out);
    return out;
}

std::uint32_t JsonReader::read_hex() {
    std::uint32_t value = 0;
    ok_ = ok_ && text_.size() >= 4;
    for (std::size_t i = 0; ok_ && i < 4; ++i) {
        char c = text_[i];
        bool digit = c >= '0' && c <= '9', letter = (c | 0x20) >= 'a' && (c | 0x20) <= 'f';
        ok_ = digit || letter;
        value = value << 4 | static_cast<std::uint32_t>(digit ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    text_.remove_prefix(ok_ ? 4 : 0);
    return value;
}

/// Half of a pair of surrogates alone is no character: the check for UTF-8 finds it.
void JsonReader::read_escape(std::string &out) {
    constexpr std::string_view names = "\"\\/bfnrt", meanings = "\"\\/\b\f\n\r\t";
    text_.remove_prefix(1);
    char kind = text_.empty() ? '\0' : text_.front();
    text_.remove_prefix(text_.empty() ? 0 : 1);
    if (kind != 'u') {
        std::size_t at = names.find(kind);
        ok_ = at != names.npos;
        if (ok_) out += meanings[at];
        return;
    }
    std::uint32_t c = read_hex();
    if (c >= 0xd800 && c < 0xdc00 && text_.starts_with("\\u")) {
        text_.remove_prefix(2);
        std::uint32_t low = read_hex();
        ok_ = ok_ && low >= 0xdc00 && low < 0xe000;
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    }
    if (ok_) append_utf8(out, c);
}

}  // namespace dlrover::cli
