// SPDX-License-Identifier: Apache-2.0
#include "daemon/outside.h"

#include <unistd.h>

#include "common/log.h"
#include "common/worker_thread.h"
#include "daemon/node_probe.h"
#include "daemon/slurm_client.h"
#include "daemon/standalone.h"
#include "transport/munge_credentials.h"
#include "transport/peer_links.h"

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

namespace dlrover::daemon {

Outside make_standalone_outside(const std::string &node) {
    return {std::make_unique<NoSlurm>(node, ::geteuid()), std::make_unique<NoPeers>(), {}};
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

void probe_munge(const Settings &settings, Facts &facts) {
    auto credentials = transport::make_munge_credentials({settings.security.munge_socket});
    if (credentials) return probe_credentials(**credentials, facts);
    add_fact(facts, "munge", local::FactState::Bad, credentials.status().message());
}
#else
void probe_munge(const Settings &, Facts &facts) {
    add_fact(facts, "munge", local::FactState::Limited,
             "this build has no MUNGE: only groups of one node work");
}

Result<std::unique_ptr<transport::PeerNetwork>> make_peers(EventLoop &, const Settings &, const std::string &,
                                                           SlurmClient &) {
    log::warning("this build has no MUNGE: only groups of one node work");
    return std::unique_ptr<transport::PeerNetwork>(std::make_unique<NoPeers>());
}
#endif

/// With a thread of its own, from the first question on.
NodeProbe make_probe(EventLoop &loop, const Settings &settings) {
    auto thread = std::make_shared<std::unique_ptr<WorkerThread>>();
    return [&loop, &settings, thread](const std::string &node_addr, std::function<void(Facts)> answer) {
        if (!*thread) *thread = std::make_unique<WorkerThread>(loop, 8);
        auto job = [settings, node_addr, answer]() -> WorkerThread::Completion {
            auto facts = std::make_shared<Facts>();
            if (node_addr.empty())
                probe_munge(settings, *facts);
            else
                probe_address(node_addr, settings.network.interface, *facts);
            return [facts, answer] { answer(std::move(*facts)); };
        };
        (void)(*thread)->submit(std::move(job));  // else nobody answers, which is said in time
    };
}

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
    outside.probe = make_probe(loop, settings);
    return outside;
}

#else

Result<Outside> make_outside(EventLoop &, const Settings &, const std::string &) {
    return Status(Code::unsupported, "this build has no Slurm: only --standalone works");
}

#endif

}  // namespace dlrover::daemon
