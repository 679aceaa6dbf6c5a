// SPDX-License-Identifier: Apache-2.0
#include "base/hostlist.h"

#include "fuzz.h"

namespace dlrover::fuzz {

bool run(std::span<const std::uint8_t> input) {
    constexpr std::size_t limit = 4096;
    auto names = expand_hostlist(text_of(input), limit);
    if (!names) return false;
    require(names->size() <= limit, "a list stays within its limit");
    for (const auto &name : *names)
        require(!name.empty() && name.size() <= max_host_name_bytes, "a name is a name");
    auto again = expand_hostlist(compress_hostlist(*names), limit);
    require(again.ok() && *again == *names, "a list survives compression");
    return true;
}

std::vector<Bytes> seeds() {
    std::vector<Bytes> list;
    for (const char *text : {"n1", "n[1-4]", "rack[1-2]n[01-04,7],login", "a,b,c[9-11]", "n[001-100]x"})
        list.push_back(bytes_of(text));
    return list;
}

}  // namespace dlrover::fuzz
