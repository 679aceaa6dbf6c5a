// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace dlrover::cli {

/// Writes JSON text piece by piece; commas come by themselves. Precondition: begin and end calls match.
class JsonWriter {
  public:
    JsonWriter &begin_object() { return open('{'); }
    JsonWriter &end_object() { return close('}'); }
    JsonWriter &begin_array() { return open('['); }
    JsonWriter &end_array() { return close(']'); }
    JsonWriter &key(std::string_view name);
    JsonWriter &value(std::string_view text);
    JsonWriter &value(const char *text) { return value(std::string_view(text)); }
    JsonWriter &value(std::int64_t number) { return raw(std::to_string(number)); }
    JsonWriter &value(std::uint64_t number) { return raw(std::to_string(number)); }
    JsonWriter &value(std::uint32_t number) { return raw(std::to_string(number)); }
    JsonWriter &value(bool flag) { return raw(flag ? "true" : "false"); }
    JsonWriter &value(double number);
    JsonWriter &null() { return raw("null"); }
    template <typename T>
    JsonWriter &field(std::string_view name, const T &v) {
        return key(name).value(v);
    }
    const std::string &text() const noexcept { return out_; }

  private:
    JsonWriter &open(char bracket);
    JsonWriter &close(char bracket);
    JsonWriter &raw(std::string_view text);
    void comma();

    std::string out_;
    bool need_comma_ = false;
};

}  // namespace dlrover::cli
