// SPDX-License-Identifier: Apache-2.0
// PMIx listens on the loopback address and, without MUNGE, believes who a client says it is. The kernel knows
// better: connections of other users never reach PMIx. For that this program has functions accept() and
// accept4() of its own, which libpmix calls in place of libc's.
#pragma once

#include <netinet/in.h>
#include <sys/types.h>

#include <cstdint>
#include <iosfwd>
#include <optional>

namespace dlrover::pmix {

/// Whose socket is at the other end of a connection over IPv4 within this machine, in a table as
/// /proc/net/tcp is. None: nobody's.
std::optional<uid_t> owner_of_peer(std::istream &table, const sockaddr_in &own, const sockaddr_in &peer);

/// How many connections accept() has looked at.
std::uint64_t connections_looked_at();

}  // namespace dlrover::pmix
