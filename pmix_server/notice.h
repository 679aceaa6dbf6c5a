// SPDX-License-Identifier: Apache-2.0
// What ranks have published, and what they want changed of it <-> bytes (proto/pmix.fbs).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "pmix_server/parcel.h"

namespace dlrover::pmix {

using Notice = proto::pmix::NoticeT;
using NoticeRange = proto::pmix::NoticeRange;

/// Who publishes, or asks. The node by its name: places are another's in the next generation.
struct Asker {
    std::string name_space;
    std::uint32_t rank = 0;
    std::string node;
};

/// New notices, all or none of them; or (take_down) away with some of the asker's.
struct Change {
    Asker by;
    std::vector<Notice> notices;  ///< by him
    bool take_down = false;
    std::vector<std::string> keys;     ///< to be taken down; none: all of his
    std::optional<NoticeRange> range;  ///< only such; none: whatever it is
};

struct NoticeQuery {
    Asker by;
    std::vector<std::string> keys;
    NoticeRange range = NoticeRange::Group;  ///< who may have published them
    bool wait = false;                       ///< until there are
    std::size_t wanted = 0;                  ///< so many of them; 0: all
};

/// What it counts for, in what bounds are about.
std::size_t bytes_of(const Notice &notice);

proto::Bytes encode_change(const Change &change);
/// corrupt: the bytes do not verify, or a value is out of range.
Result<Change> decode_change(std::span<const std::uint8_t> bytes);

}  // namespace dlrover::pmix
