// SPDX-License-Identifier: Apache-2.0
#include "daemon/outside.h"

#include <unistd.h>

#include "common/log.h"
#include "daemon/slurm_client.h"
#include "daemon/standalone.h"
#include "transport/munge_credentials.h"
#include "transport/peer_links.h"

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

namespace dlrover::daemon {

Outside make_standalone_outside(const std::string &node) {
    return {std::make_unique<NoSlurm>(node, ::geteuid()), std::make_unique<NoPeers>()};
}

#ifdef HAVE_SLURM

namespace {

#ifdef HAVE_MUNGE
Result<std::unique_ptr<transport::PeerNetwork>> make_peers(EventLoop &loop, const Settings &settings,
                                                           const std::string &node, SlurmClient &slurm) {
    auto credentials = transport::make_munge_credentials({settings.security.munge_socket});
    if (!credentials) return credentials.take_status();
    auto config = transport::links_config(settings);
    config.cluster = slurm.cluster_name();
    config.node = node;
    auto look_up = [&slurm](const std::string &name, std::function<void(Result<std::string>)> answer) {
        slurm.load_addresses({name}, [answer](Result<std::vector<NodeAddress>> addresses) {
            if (!addresses) return answer(addresses.take_status());
            if (addresses->empty()) return answer(Status(Code::not_found, "Slurm knows no such node"));
            answer(addresses->front().address);
        });
    };
    auto links = transport::PeerLinks::create(loop, std::move(config), std::move(*credentials), look_up);
    if (!links) return links.take_status();
    return std::unique_ptr<transport::PeerNetwork>(std::move(*links));
}
#else
Result<std::unique_ptr<transport::PeerNetwork>> make_peers(EventLoop &, const Settings &, const std::string &,
                                                           SlurmClient &) {
    log::warning("this build has no MUNGE: only groups of one node work");
    return std::unique_ptr<transport::PeerNetwork>(std::make_unique<NoPeers>());
}
#endif

}  // namespace

Result<Outside> make_outside(EventLoop &loop, const Settings &settings, const std::string &node) {
    QueuedSlurmClient::Options options;
    options.timeout = settings.slurm.timeout;
    Outside outside;
    outside.slurm =
        std::make_unique<QueuedSlurmClient>(loop, make_libslurm_calls(settings.slurm.conf), options);
    auto peers = make_peers(loop, settings, node, *outside.slurm);
    if (!peers) return peers.take_status();
    outside.peers = std::move(*peers);
    return outside;
}

#else

Result<Outside> make_outside(EventLoop &, const Settings &, const std::string &) {
    return Status(Code::unsupported, "this build has no Slurm: only --standalone works");
}

#endif

}  // namespace dlrover::daemon
