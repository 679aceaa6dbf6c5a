// SPDX-License-Identifier: Apache-2.0
// The world outside this node as the daemon uses it: Slurm and the other daemons, or neither (standalone).
#pragma once

#include <memory>
#include <string>

#include "common/event_loop.h"
#include "common/settings.h"
#include "daemon/inspection.h"
#include "daemon/slurm.h"
#include "transport/peer_network.h"

namespace dlrover::daemon {

struct Outside {
    std::unique_ptr<SlurmClient> slurm;
    std::unique_ptr<transport::PeerNetwork> peers;  ///< ends before slurm: it asks there for addresses
    NodeProbe probe;                                ///< empty: standalone
};

Outside make_standalone_outside(const std::string &node);
/// unsupported: this build has no Slurm.
Result<Outside> make_outside(EventLoop &loop, const Settings &settings, const std::string &node);

}  // namespace dlrover::daemon
