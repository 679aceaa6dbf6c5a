// SPDX-License-Identifier: Apache-2.0
// The network interfaces of this node, as the kernel tells them.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/sockets.h"

namespace dlrover::daemon {

struct Interface {
    std::string name;
    bool up = false, loopback = false;
    long megabits = 0;  ///< in a second; 0: the driver does not say
    std::vector<transport::SocketAddress> addresses;
};

/// Those with an IPv4 or IPv6 address. speeds: the folder that has one for each.
std::vector<Interface> read_interfaces(const std::string &speeds = "/sys/class/net");

/// That has one of the addresses.
const Interface *interface_of(std::span<const Interface> all,
                              std::span<const transport::SocketAddress> addresses);

/// The fastest of those that are up and faster than this one, where both speeds are known.
const Interface *faster_than(std::span<const Interface> all, const Interface &used);

/// "eth0, 1000 Mbit/s"
std::string interface_text(const Interface &interface);

/// "eth0, 1000 Mbit/s; ib0, 100000 Mbit/s, is there and not used". Empty: no interface has that numeric
/// address.
std::string network_text(std::span<const Interface> all, const std::string &address);
/// Whether that text tells of a faster one.
bool tells_of_faster(const std::string &network_text);

}  // namespace dlrover::daemon
