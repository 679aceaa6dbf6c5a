// SPDX-License-Identifier: Apache-2.0
#include "daemon/node_probe.h"

#include <unistd.h>

#include <chrono>

#include "daemon/interfaces.h"
#include "transport/sockets.h"

namespace dlrover::daemon {
namespace {

using local::FactState;

}  // namespace

void probe_address(const std::string &node_addr, const std::string &wanted, Facts &facts) {
    const char *name = "network";
    auto addresses = transport::resolve(node_addr);
    if (!addresses || addresses->empty())
        return add_fact(facts, name, FactState::Bad,
                        "NodeAddr " + node_addr + " can not be resolved: " + addresses.status().message(),
                        "check the node's NodeAddr in slurm.conf, and the name service of this node");
    std::vector<Interface> all = read_interfaces();
    const Interface *found = interface_of(all, *addresses);
    if (!found)
        return add_fact(facts, name, FactState::Bad,
                        "no interface of this node has its NodeAddr " + node_addr +
                            ": other nodes can not reach it, and do not believe it",
                        "make NodeAddr in slurm.conf an address of this node");
    if (!wanted.empty() && wanted != found->name)
        return add_fact(facts, name, FactState::Bad,
                        "NodeAddr " + node_addr + " is of " + found->name +
                            ", but links are accepted on network.interface = " + wanted + " alone",
                        "network.interface = \"" + found->name + "\", or none, in dlrover.toml");
    std::string text = "NodeAddr " + node_addr + " is of " + interface_text(*found);
    if (!found->up)
        return add_fact(facts, name, FactState::Bad, text + ", which is down", "bring the interface up");
    if (found->loopback)
        return add_fact(facts, name, FactState::Limited, text + ", which no other node reaches");
    if (const Interface *faster = faster_than(all, *found))
        return add_fact(
            facts, name, FactState::Limited,
            text + ", while " + interface_text(*faster) +
                ", is there: copies go the slow way, unless by RDMA",
            "make NodeAddr in slurm.conf an address of " + faster->name + ", if all nodes have it");
    add_fact(facts, name, FactState::Good, text);
}

void probe_credentials(transport::Credentials &credentials, Facts &facts) {
    const char *name = "munge", *change = "check that munged runs, and its clock and key";
    auto began = std::chrono::steady_clock::now();
    auto text = credentials.encode(std::vector<std::uint8_t>(32, 7));
    if (!text) return add_fact(facts, name, FactState::Bad, text.status().message(), change);
    auto voucher = credentials.decode(*text);
    if (!voucher) return add_fact(facts, name, FactState::Bad, voucher.status().message(), change);
    if (voucher->uid != ::geteuid())
        return add_fact(facts, name, FactState::Bad,
                        "munged takes the daemon for uid " + std::to_string(voucher->uid), change);
    auto us = std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - began);
    add_fact(facts, name, FactState::Good,
             "makes and reads credentials (" + std::to_string(us.count() / 1000) + "." +
                 std::to_string(us.count() / 100 % 10) + " ms for both)");
}

}  // namespace dlrover::daemon
