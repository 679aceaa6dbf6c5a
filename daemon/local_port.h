// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "proto/local_codec.h"

namespace dlrover::daemon {

namespace local = proto::local;

/// A connection of a process of this node. Never used again.
using ConnectionId = std::uint64_t;
using SharedFd = std::shared_ptr<const UniqueFd>;

/// Who is at the other end, as the kernel says, but for the role.
struct Client {
    ConnectionId id = 0;
    std::uint32_t uid = 0, gid = 0;
    std::int32_t pid = 0;
    local::Role role = local::Role::None;
};

/// A process that is connected here.
class LocalProcess {
  public:
    virtual ~LocalProcess() = default;
    /// Ends it at once; it can not keep that off, and runs no more of its code. false: it is gone, or may not
    /// be ended.
    virtual bool kill() = 0;
    /// Stopped, and its parent with it, as a whole step is (scontrol suspend).
    virtual bool is_suspended() const = 0;
};

/// The way to the processes of this node. Thread: the event loop's. A connection that is gone is ignored.
class LocalPort {
  public:
    virtual ~LocalPort() = default;
    virtual void send(ConnectionId to, local::MessageT message, std::vector<SharedFd> fds = {}) = 0;
    /// After what was sent is out.
    virtual void close(ConnectionId connection) = 0;
    /// Nothing more is read from it, nor its end noticed, until release(), which must not come from inside a
    /// message's handling.
    virtual void hold(ConnectionId connection) = 0;
    virtual void release(ConnectionId connection) = 0;
    /// Who made the connection, also after its end; none: nobody can tell any more.
    virtual std::shared_ptr<LocalProcess> process(ConnectionId connection) = 0;

    template <typename BodyT>
    void push(ConnectionId to, BodyT body) {
        send(to, proto::make_local(0, std::move(body)));
    }
    template <typename BodyT>
    void answer(ConnectionId to, std::uint32_t id, BodyT body, std::vector<SharedFd> fds = {}) {
        send(to, proto::make_local(id, std::move(body)), std::move(fds));
    }
    void done(ConnectionId to, std::uint32_t id) { answer(to, id, local::DoneT{}); }
    /// `text`: what happened and what to do.
    void fail(ConnectionId to, std::uint32_t id, local::Refusal code, std::string text) {
        local::FailureT failure;
        failure.code = code;
        failure.text = std::move(text);
        answer(to, id, std::move(failure));
    }
};

}  // namespace dlrover::daemon
