// SPDX-License-Identifier: Apache-2.0
#include "daemon/node_probe.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <optional>

#include "transport/sockets.h"

namespace dlrover::daemon {
namespace {

using local::FactState;
using transport::SocketAddress;

struct Interface {
    std::string name;
    bool up = false, loopback = false;
};

socklen_t length_of(const sockaddr &address) {
    return address.sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

/// That has one of the addresses.
std::optional<Interface> find_interface(const std::vector<SocketAddress> &addresses) {
    ifaddrs *raw = nullptr;
    if (::getifaddrs(&raw) != 0) return std::nullopt;
    std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(raw, ::freeifaddrs);
    for (const ifaddrs *i = raw; i; i = i->ifa_next) {
        bool inet = i->ifa_addr && (i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6);
        if (!inet) continue;
        SocketAddress own = SocketAddress::from(i->ifa_addr, length_of(*i->ifa_addr));
        if (!std::ranges::any_of(addresses, [&](const auto &a) { return a.same_host(own); })) continue;
        return Interface{i->ifa_name, (i->ifa_flags & IFF_UP) != 0, (i->ifa_flags & IFF_LOOPBACK) != 0};
    }
    return std::nullopt;
}

/// Empty: the driver does not say.
std::string speed_of(const std::string &interface) {
    std::ifstream file("/sys/class/net/" + interface + "/speed");
    long megabits = 0;
    if (!(file >> megabits) || megabits <= 0) return "";
    return ", " + std::to_string(megabits) + " Mbit/s";
}

}  // namespace

void probe_address(const std::string &node_addr, const std::string &wanted, Facts &facts) {
    const char *name = "network";
    auto addresses = transport::resolve(node_addr);
    if (!addresses || addresses->empty())
        return add_fact(facts, name, FactState::Bad,
                        "NodeAddr " + node_addr + " can not be resolved: " + addresses.status().message(),
                        "check the node's NodeAddr in slurm.conf, and the name service of this node");
    auto found = find_interface(*addresses);
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
    std::string text = "NodeAddr " + node_addr + " is of " + found->name;
    if (!found->up)
        return add_fact(facts, name, FactState::Bad, text + ", which is down", "bring the interface up");
    if (found->loopback)
        return add_fact(facts, name, FactState::Limited, text + ", which no other node reaches");
    add_fact(facts, name, FactState::Good, text + speed_of(found->name));
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
