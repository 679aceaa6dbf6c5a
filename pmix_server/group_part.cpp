// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/group_part.h"

#include <flatbuffers/base.h>

namespace dlrover::pmix {
namespace {

constexpr std::size_t word = sizeof(std::uint64_t), head = 2 * word;

std::uint64_t read_word(std::span<const std::uint8_t> bytes) {
    return flatbuffers::ReadScalar<std::uint64_t>(bytes.data());
}

}  // namespace

void append_part(const GroupPart &part, proto::Bytes &out) {
    std::size_t at = out.size();
    out.resize(at + head);
    flatbuffers::WriteScalar<std::uint64_t>(out.data() + at, part.context);
    flatbuffers::WriteScalar<std::uint64_t>(out.data() + at + word, part.data.size());
    out.insert(out.end(), part.data.begin(), part.data.end());
}

Result<GroupPart> join_parts(std::span<const std::uint8_t> parts) {
    Status broken(Code::corrupt, "not the parts of a process group");
    if (parts.empty()) return broken;
    GroupPart all;
    for (bool first = true; !parts.empty(); first = false) {
        if (parts.size() < head) return broken;
        if (first) all.context = read_word(parts);
        std::uint64_t bytes = read_word(parts.subspan(word));
        parts = parts.subspan(head);
        if (bytes > parts.size()) return broken;
        auto data = parts.first(bytes);
        all.data.insert(all.data.end(), data.begin(), data.end());
        parts = parts.subspan(bytes);
    }
    return all;
}

}  // namespace dlrover::pmix
