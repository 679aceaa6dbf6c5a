// SPDX-License-Identifier: Apache-2.0
// A daemon that dies under its first caller. It tells a test that somebody has called in vain and is trying
// again.
#pragma once

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <stdexcept>
#include <string>

#include "base/unique_fd.h"

namespace dlrover::test {

class DyingDaemon {
  public:
    /// Listens at once. Throws where it can not.
    explicit DyingDaemon(std::string path) : path_(std::move(path)) {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        std::snprintf(address.sun_path, sizeof address.sun_path, "%s", path_.c_str());
        listener_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        timeval patience{10, 0};
        ::setsockopt(listener_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        if (::bind(listener_.get(), reinterpret_cast<sockaddr *>(&address), sizeof address) != 0 ||
            ::listen(listener_.get(), 1) != 0)
            throw std::runtime_error("can not listen on " + path_);
    }

    /// Whether somebody called within ten seconds. The call is not answered, and nobody listens any more.
    bool await_caller() {
        UniqueFd caller(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        listener_.reset();
        ::unlink(path_.c_str());
        return static_cast<bool>(caller);
    }

  private:
    std::string path_;
    UniqueFd listener_;
};

}  // namespace dlrover::test
