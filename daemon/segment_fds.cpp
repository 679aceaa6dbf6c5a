// SPDX-License-Identifier: Apache-2.0
#include "daemon/segment_fds.h"

#include <fcntl.h>

#include <string>
#include <utility>

namespace dlrover::daemon {

Result<std::vector<SharedFd>> describe_read_only(const std::vector<ArenaSegment> &segments,
                                                 std::vector<std::unique_ptr<local::SlotSegmentT>> &out) {
    std::vector<SharedFd> fds;
    for (const auto &segment : segments) {
        std::string path = "/proc/self/fd/" + std::to_string(segment.fd->get());
        UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
        if (!fd) return Status::from_errno("open of a segment for reading");
        auto entry = std::make_unique<local::SlotSegmentT>();
        entry->id = segment.id.value();
        entry->bytes = segment.bytes;
        entry->fd = true;
        out.push_back(std::move(entry));
        fds.push_back(std::make_shared<const UniqueFd>(std::move(fd)));
    }
    return fds;
}

}  // namespace dlrover::daemon
