// SPDX-License-Identifier: Apache-2.0
// Reads JSON of which the shape is known: objects, arrays, text and unsigned integers. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dlrover::cli {

/// Walks through a text once. After the first mismatch nothing matches and loops over keys and elements end.
class JsonReader {
  public:
    /// `text` outlives this.
    explicit JsonReader(std::string_view text) : text_(text) {}
    bool ok() const noexcept { return ok_; }
    /// All was read, and only blanks follow.
    bool at_end();
    void fail() noexcept { ok_ = false; }

    void begin_object() { open('{'); }
    /// The next key of the innermost object; false: it ends here.
    bool next_key(std::string &key);
    void begin_array() { open('['); }
    bool next_element() { return next(']'); }
    /// UTF-8.
    std::string string();
    std::uint64_t number();

  private:
    void open(char bracket);
    bool next(char bracket);
    void skip_blanks();
    bool accept(char c);
    void read_escape(std::string &out);
    std::uint32_t read_hex();

    std::string_view text_;
    std::vector<bool> first_;  ///< per open bracket: nothing was read in it
    bool ok_ = true;
};

}  // namespace dlrover::cli
