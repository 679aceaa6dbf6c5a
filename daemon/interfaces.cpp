// SPDX-License-Identifier: Apache-2.0
#include "daemon/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <fstream>
#include <memory>

namespace dlrover::daemon {
namespace {

constexpr const char *not_used = ", is there and not used";

using transport::SocketAddress;

socklen_t length_of(const sockaddr &address) {
    return address.sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

long speed_in(const std::string &folder) {
    std::ifstream file(folder + "/speed");
    long megabits = 0;
    return file >> megabits && megabits > 0 ? megabits : 0;
}

}  // namespace

std::vector<Interface> read_interfaces(const std::string &speeds) {
    std::vector<Interface> all;
    ifaddrs *raw = nullptr;
    if (::getifaddrs(&raw) != 0) return all;
    std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(raw, ::freeifaddrs);
    for (const ifaddrs *i = raw; i; i = i->ifa_next) {
        bool inet = i->ifa_addr && (i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6);
        if (!inet) continue;
        auto known = std::ranges::find(all, i->ifa_name, &Interface::name);
        if (known == all.end()) {
            Interface fresh{i->ifa_name,
                            (i->ifa_flags & IFF_UP) != 0,
                            (i->ifa_flags & IFF_LOOPBACK) != 0,
                            speed_in(speeds + "/" + i->ifa_name),
                            {}};
            known = all.insert(all.end(), std::move(fresh));
        }
        known->addresses.push_back(SocketAddress::from(i->ifa_addr, length_of(*i->ifa_addr)));
    }
    return all;
}

const Interface *interface_of(std::span<const Interface> all, std::span<const SocketAddress> addresses) {
    auto has_one = [&](const Interface &i) {
        return std::ranges::any_of(i.addresses, [&](const auto &own) {
            return std::ranges::any_of(addresses, [&](const auto &a) { return a.same_host(own); });
        });
    };
    auto found = std::ranges::find_if(all, has_one);
    return found == all.end() ? nullptr : &*found;
}

const Interface *faster_than(std::span<const Interface> all, const Interface &used) {
    const Interface *best = nullptr;
    for (const Interface &i : all) {
        bool faster = i.up && !i.loopback && used.megabits > 0 && i.megabits > used.megabits;
        if (faster && (best == nullptr || i.megabits > best->megabits)) best = &i;
    }
    return best;
}

std::string interface_text(const Interface &interface) {
    if (interface.megabits == 0) return interface.name;
    return interface.name + ", " + std::to_string(interface.megabits) + " Mbit/s";
}

std::string network_text(std::span<const Interface> all, const std::string &address) {
    auto own = transport::parse_address(address);
    const Interface *used = own ? interface_of(all, std::span(&*own, 1)) : nullptr;
    if (used == nullptr) return "";
    const Interface *faster = faster_than(all, *used);
    std::string better = faster ? "; " + interface_text(*faster) + not_used : "";
    return interface_text(*used) + better;
}

bool tells_of_faster(const std::string &network_text) {
    return network_text.ends_with(not_used);
}

}  // namespace dlrover::daemon
