// SPDX-License-Identifier: Apache-2.0
// libpmix has no call that tells when what ranks are told has gone out. The kernel can tell whether it still
// waits to write.
#pragma once

namespace dlrover::pmix {

/// Whether this process waits, by epoll, for a socket of the Internet's families to take more: libevent,
/// which libpmix uses, does so as long as a queue to a client is not empty. False where that can not be seen
/// (no /proc, other ways to wait than epoll).
bool has_unsent();

}  // namespace dlrover::pmix
