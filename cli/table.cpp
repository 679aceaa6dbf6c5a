// SPDX-License-Identifier: Apache-2.0
#include "cli/table.h"

#include <algorithm>

namespace dlrover::cli {

std::string Table::text(const std::string &indent) const {
    std::vector<std::size_t> widths;
    for (const auto &row : rows_) {
        widths.resize(std::max(widths.size(), row.size()));
        for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    }
    std::string out;
    for (const auto &row : rows_) {
        std::string line = indent;
        for (std::size_t i = 0; i < row.size(); ++i) {
            line += row[i];
            if (i + 1 < row.size()) line.append(widths[i] - row[i].size() + 2, ' ');
        }
        line.erase(line.find_last_not_of(' ') + 1);
        out += line + "\n";
    }
    return out;
}

std::string printable(const std::string &text) {
    std::string out = text;
    for (char &c : out) {
        auto u = static_cast<unsigned char>(c);
        if (u == '\n' || u == '\t')
            c = ' ';
        else if (u < 0x20 || u == 0x7f)
            c = '?';
    }
    return out;
}

}  // namespace dlrover::cli
