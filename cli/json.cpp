// SPDX-License-Identifier: Apache-2.0
#include "cli/json.h"

#include <cmath>
#include <cstdio>

namespace dlrover::cli {
namespace {

void append_escaped(std::string &out, std::string_view text) {
    out += '"';
    for (char c : text) {
        auto u = static_cast<unsigned char>(c);
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (u < 0x20) {
            char buffer[8];
            std::snprintf(buffer, sizeof buffer, "\\u%04x", u);
            out += buffer;
        } else {
            out += c;
        }
    }
    out += '"';
}

}  // namespace

void JsonWriter::comma() {
    if (need_comma_) out_ += ',';
    need_comma_ = true;
}

JsonWriter &JsonWriter::open(char bracket) {
    comma();
    out_ += bracket;
    need_comma_ = false;
    return *this;
}

JsonWriter &JsonWriter::close(char bracket) {
    out_ += bracket;
    need_comma_ = true;
    return *this;
}

JsonWriter &JsonWriter::raw(std::string_view text) {
    comma();
    out_ += text;
    return *this;
}

JsonWriter &JsonWriter::key(std::string_view name) {
    comma();
    append_escaped(out_, name);
    out_ += ':';
    need_comma_ = false;
    return *this;
}

JsonWriter &JsonWriter::value(std::string_view text) {
    comma();
    append_escaped(out_, text);
    return *this;
}

JsonWriter &JsonWriter::value(double number) {
    if (!std::isfinite(number)) return null();
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%.6g", number);
    return raw(buffer);
}

}  // namespace dlrover::cli
