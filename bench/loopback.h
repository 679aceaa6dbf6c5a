// SPDX-License-Identifier: Apache-2.0
// Two ends of a TCP connection of this machine to itself, tuned as the product's are; for benchmarks.
#pragma once

#include <poll.h>

#include <chrono>
#include <utility>

#include "transport/sockets.h"

namespace dlrover::bench {

/// The end that connected, and the one that accepted.
inline Result<std::pair<UniqueFd, UniqueFd>> connected_pair() {
    using namespace transport;
    constexpr std::chrono::seconds patience(10);
    auto listener = listen_on({.address = "127.0.0.1"});
    if (!listener) return listener.take_status();
    auto to = local_address(listener->get());
    if (!to) return to.take_status();
    auto out = begin_connect(*to, "", false);
    if (!out) return out.take_status();
    pollfd polled{listener->get(), POLLIN, 0};
    if (::poll(&polled, 1, 10000) != 1) return Status(Code::timeout, "no connection to this machine itself");
    SocketAddress peer;
    auto in = accept_from(listener->get(), peer);
    if (!in) return in.take_status();
    DLROVER_TRY(tune(out->get(), patience));
    DLROVER_TRY(tune(in->get(), patience));
    return std::pair(std::move(*out), std::move(*in));
}

}  // namespace dlrover::bench
