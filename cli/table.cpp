// SPDX-License-Identifier: Apache-2.0
#include "cli/table.h"

#include <algorithm>

#include "ckpt/storage_name.h"

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
    bool utf8 = ckpt::valid_utf8(text);
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        auto u = static_cast<unsigned char>(text[i]);
        bool eight_bit_control = u == 0xc2 && utf8 && static_cast<unsigned char>(text[i + 1]) < 0xa0;
        if (u == '\n' || u == '\t')
            out += ' ';
        else if (u < 0x20 || u == 0x7f || eight_bit_control || (u >= 0x80 && !utf8))
            out += '?';
        else
            out += text[i];
        i += eight_bit_control ? 1 : 0;
    }
    return out;
}

}  // namespace dlrover::cli
