// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace dlrover::cli {

/// A plain text table: columns as wide as their widest cell, two blanks between, no trailing blanks. Row 0 is
/// the heading.
class Table {
  public:
    explicit Table(std::vector<std::string> heading) { rows_.push_back(std::move(heading)); }
    /// Shorter rows are filled with empty cells.
    void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
    bool empty() const noexcept { return rows_.size() == 1; }
    /// Every line begins with `indent` and ends with a newline.
    std::string text(const std::string &indent = "") const;

  private:
    std::vector<std::vector<std::string>> rows_;
};

/// Control characters and escape sequences of somebody else's text become '?': a terminal must not obey them.
/// So do bytes above 0x7f where they are no UTF-8.
std::string printable(const std::string &text);

}  // namespace dlrover::cli
