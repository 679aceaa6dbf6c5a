// SPDX-License-Identifier: Apache-2.0
// Follows what libpmix reads from its clients and writes to them: this program has functions read(), writev()
// and recv() of its own, which libpmix calls in place of libc's. See conversation.h.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "pmix_server/conversation.h"

namespace dlrover::pmix {

/// From now on. Thread: any; so are the others.
void watch_client(int fd);

/// In libpmix's thread, within its word that this rank has connected: whose connection that is.
void note_connected(std::uint32_t rank);

struct ClientWait {
    std::optional<std::uint32_t> rank;  ///< none: nobody has said
    Conversation::Wait wait;
};
/// Of the clients that are connected. None: one of them waits as long as it has said itself.
std::optional<std::vector<ClientWait>> clients_that_wait();

}  // namespace dlrover::pmix
