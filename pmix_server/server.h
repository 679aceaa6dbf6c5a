// SPDX-License-Identifier: Apache-2.0
// PMIx's server library in this process. There is one, for the process's life: it can not be begun again.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/event_loop.h"
#include "pmix_server/info_list.h"
#include "pmix_server/security.h"
#include "pmix_server/upcalls.h"

namespace dlrover::pmix {

using Variables = std::vector<std::string>;  ///< NAME=value

/// Thread: the loop's. Calls into PMIx block for as long as its own thread takes, milliseconds.
class Server {
  public:
    /// `folder`: private, for PMIx's files. Once, with few descriptors open: its listener uses select().
    static Status start(const std::string &folder, Security security, pmix_server_module_t &module);

    /// The namespace of a world, and the ranks of this node as its clients; what they need to find it, but
    /// for PMIX_RANK.
    static Result<Variables> add(const World &world);
    /// And everything about it; clients that are still connected are cut off.
    static void remove(const World &world);

    static pmix_proc_t proc_of(const World &world, std::uint32_t rank);

    /// Tells the ranks of this node: of a rank's, or (none) of our own. To all of them where `to_all`; else
    /// `infos` says to whom.
    static Status notify(const World &world, int code, std::optional<std::uint32_t> from, bool to_all,
                         InfoList infos);

    /// `then` comes on the loop when PMIx's own thread has looked at what it was asked before.
    static void look(EventLoop &loop, std::function<void()> then);

    /// What one of the ranks here has put, once it has. `then` comes on the loop.
    using Then = std::function<void(pmix_status_t status, proto::Bytes data)>;
    static void look_up(EventLoop &loop, const World &world, std::uint32_t rank, Then then);
};

}  // namespace dlrover::pmix
