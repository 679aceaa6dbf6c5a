// SPDX-License-Identifier: Apache-2.0
// libpmix has no call that tells when what ranks are told has gone out. The kernel can tell whether it still
// waits to write.
#pragma once

namespace dlrover::pmix {

/// Whether a socket of the Internet's families that this process waits for by epoll, as libevent and so
/// libpmix does, has not given its peer all: it is waited for to take more, as long as a queue to a client is
/// not empty, or the kernel holds what the peer's has no room for, which would be lost with this process
/// where it has not read all that the peer has sent. False where that can not be seen (no /proc, other ways
/// to wait than epoll).
bool has_unsent();

/// Whether one that this process waits for in that way is connected: a client that has not ended, or of which
/// libpmix has not noticed it. False where that can not be seen.
bool has_clients();

}  // namespace dlrover::pmix
