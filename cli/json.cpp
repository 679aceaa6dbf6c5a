// SPDX-License-Identifier: Apache-2.0
#include "cli/json.h"

#include <cmath>
#include <cstdio>

#include "ckpt/storage_name.h"

namespace dlrover::cli {
namespace {

/// Neither a terminal nor a reader of UTF-8 trips over what comes out.
void append_escaped(std::string &out, std::string_view text) {
    out += '"';
    bool utf8 = ckpt::valid_utf8(text);
    for (std::size_t i = 0; i < text.size(); ++i) {
        char c = text[i];
        auto u = static_cast<unsigned char>(c);
        bool eight_bit_control = u == 0xc2 && utf8 && static_cast<unsigned char>(text[i + 1]) < 0xa0;
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (u >= 0x80 && !utf8) {
            out += "\\ufffd";
        } else if (u < 0x20 || u == 0x7f || eight_bit_control) {
            char buffer[8];
            i += eight_bit_control ? 1 : 0;
            std::snprintf(buffer, sizeof buffer, "\\u%04x", static_cast<unsigned char>(text[i]));
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
