// SPDX-License-Identifier: Apache-2.0
// Where bytes from other nodes land: in memory that was named beforehand, from who has the key that goes with
// it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "transport/bulk_wire.h"
#include "transport/sockets.h"

namespace dlrover::transport {

/// One transfer that is expected. The key is used for one attempt: after `done` it is worth nothing.
struct BulkTarget {
    using Time = std::chrono::steady_clock::time_point;
    std::uint64_t transfer = 0;
    Key key;
    /// Whose connections are taken for it, ports left aside; none: anybody's.
    std::vector<SocketAddress> from;
    /// What is filled, from its start to its end. Touched by the server's threads until `done` or forget().
    std::span<std::byte> memory;
    std::chrono::milliseconds stall{5000};  ///< a stream on which nothing comes for so long has failed
    Time deadline = Time::max();            ///< of all of it
    /// What can be taken from elsewhere, where the sender has the same: it leaves that out, and `fill` puts
    /// it into the memory, before `verify`. May block. At most max_bulk_haves; none without `fill`.
    std::vector<BulkHave> haves;
    std::function<Status(std::span<const BulkSpared> spared)> fill;
    /// Some bytes came by that stream and stay; each stream has a thread; not told of all (UCX, `fill`). May
    /// be none.
    std::function<void(std::uint16_t stream, std::uint64_t offset, std::uint64_t bytes)> arrived;
    /// `verify` looks at all that counts: the sender's blocks need no checksums of their own.
    bool compared = false;
    /// Once all bytes are there; what it says the sender hears. May block. None: nothing is checked.
    std::function<Status()> verify;
    /// Once, when nobody touches the memory any more; not after forget(). Must not call the server.
    std::function<void(const Status &status)> done;
};

struct BulkServerOptions {
    ListenOptions listen;
    BulkMethods methods = static_cast<BulkMethods>(BulkMethod::tcp);
    std::chrono::milliseconds greeting_limit{5000};
    BulkHash hash = bulk_hash;
    unsigned max_connections = 64;  ///< of those whose addresses are expected; more are closed at once
};

/// Connections from addresses that no transfer is expected from are closed at once.
/// Has threads of its own: one that listens and one for each connection. Members: any thread.
class BulkServer {
  public:
    /// unsupported: a method that this program was built without. init_crypto() was called.
    static Result<std::unique_ptr<BulkServer>> start(const BulkServerOptions &options);
    /// Ends everything; no `done` comes any more.
    ~BulkServer();
    BulkServer(const BulkServer &) = delete;
    BulkServer &operator=(const BulkServer &) = delete;

    std::uint16_t port() const noexcept;
    /// already_exists: a transfer of that number is expected. invalid_argument: no memory, or `haves` that
    /// can not be.
    Status expect(BulkTarget target);
    /// Waits until nobody touches its memory any more. A transfer that is not there: nothing happens.
    void forget(std::uint64_t transfer);

  private:
    class State;
    explicit BulkServer(std::shared_ptr<State> state) : state_(std::move(state)) {}
    std::shared_ptr<State> state_;
};

}  // namespace dlrover::transport
