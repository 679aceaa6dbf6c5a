// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/security.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>

#include "base/unique_fd.h"

namespace dlrover::pmix {
namespace {

/// MUNGE's own default; where it is configured to be elsewhere PMIx, too, looks here.
constexpr const char *munge_socket = "/run/munge/munge.socket.2";

}  // namespace

Security best_security() {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, munge_socket, sizeof address.sun_path - 1);
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    bool answers = fd && ::connect(fd.get(), reinterpret_cast<sockaddr *>(&address), sizeof address) == 0;
    return answers ? Security::munge : Security::native;
}

}  // namespace dlrover::pmix
