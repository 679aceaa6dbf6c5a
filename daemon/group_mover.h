// SPDX-License-Identifier: Apache-2.0
// The mover of one group's node (dlrover-mover): what it is told to bring to this node's memory and to send
// from it, and what it says of that.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/event_loop.h"
#include "common/settings.h"
#include "daemon/arena.h"
#include "daemon/local_port.h"

namespace dlrover::daemon {

/// An object in this node's memory that may have the same bytes as one that comes.
struct LentObject {
    Rank rank;
    std::vector<ArenaSegment> segments;  ///< read-only
    std::uint64_t data_bytes = 0, table_offset = 0, table_bytes = 0, table_xxh3 = 0;
};

/// An object that is to come into this memory.
struct ObjectToReceive {
    CheckpointId id;
    std::uint32_t world_size = 0;
    Rank rank;
    std::vector<ArenaSegment> segments;  ///< writable
    std::uint64_t data_bytes = 0, table_offset = 0, table_bytes = 0, table_xxh3 = 0;
    std::uint64_t transfer = 0;     ///< known to both nodes
    std::vector<std::uint8_t> key;  ///< 32 bytes, for one attempt
    std::string from;               ///< the sender's address, numeric or a name
    bool chunks_only = false;  ///< what lies between its chunks does not count: it is kept, and not added up
    bool parity = false;       ///< it has no table: table_xxh3 is the checksum of its data
    std::vector<LentObject> own;  ///< of the same checkpoint; the mover's as long as `segments`
    std::chrono::milliseconds wait{0};
};

/// What memory has to hold.
struct NamedObject {
    CheckpointId id;
    std::uint32_t world_size = 0;
    Rank rank;
    std::uint64_t data_bytes = 0, table_offset = 0, table_bytes = 0, table_xxh3 = 0;
    bool parity = false;  ///< as in ObjectToReceive
};

/// An object that another node's mover expects.
struct ObjectToSend {
    std::optional<NamedObject> object;   ///< none: bytes, of which nothing is known here
    std::vector<ArenaSegment> segments;  ///< read-only
    std::uint64_t bytes = 0;             ///< from the object's start to its table's end
    std::uint64_t transfer = 0;
    std::vector<std::uint8_t> key;
    std::string address;  ///< of the other mover's node, numeric or a name
    std::uint16_t port = 0, way = 0;
    std::chrono::milliseconds wait{0};
};

/// A part of a code that is to be added to what becomes another one (ckpt/erasure.h).
struct PartToFold {
    std::vector<ArenaSegment> into;  ///< writable
    std::vector<ArenaSegment> from;
    std::uint64_t sum_bytes = 0;  ///< of `into` hold the sum so far
    std::uint64_t bytes = 0;      ///< of `from`
    std::uint16_t data = 0, target = 0, source = 0;
    std::vector<std::uint16_t> given;  ///< empty: all objects
    bool last = false;
    std::optional<NamedObject> object;  ///< what the sum has to be then
    std::chrono::milliseconds wait{0};
};

/// What a node can do in a moment; the memory gets bytes that look random.
struct NodeToMeasure {
    std::vector<ArenaSegment> segments;  ///< writable
    std::uint64_t bytes = 0;
    bool work = false, gpus = false;
    std::chrono::milliseconds wait{0};
};
struct NodeMeasure {
    Status status;  ///< corrupt: the node is unfit, whoever asks
    std::uint64_t work_us = 0, xxh3 = 0;
    std::string note;  ///< for people, of the work; may be empty
};

/// Thread: the event loop's. No hook and no callback comes from inside a call, none after the end of this
/// object.
class GroupMover {
  public:
    static constexpr std::size_t max_orders = 256;
    static constexpr std::chrono::seconds patience{10};  ///< for an answer that is overdue
    /// For that to a call: one order, whose memory is mapped and its pages made, may come before it.
    static constexpr std::chrono::seconds call_limit{30};

    struct Services {
        EventLoop &loop;
        LocalPort &port;
        const Settings &settings;
    };
    struct Hooks {
        std::function<void()> changed;  ///< ready() has become true or false
        /// It did not answer, or has a successor; killed: else it may still write what it was given, and its
        /// orders stay open until its connection ends.
        std::function<void(bool killed)> ended = {};
        /// This node's, numeric, where the mover was given none; empty: not known.
        std::function<std::string()> own_address = {};
    };
    using Order = std::uint64_t;  ///< rises, never 0

    /// `address`: this node's, numeric; empty: the mover listens at every address.
    GroupMover(Services services, std::string address, Hooks hooks);
    ~GroupMover();
    GroupMover(const GroupMover &) = delete;
    GroupMover &operator=(const GroupMover &) = delete;

    // ---- the mover of this node ----
    void on_hello(const Client &from, std::uint32_t id);
    /// false: no message of a mover.
    bool on_message(const Client &from, const local::MessageT &message);
    void on_gone(ConnectionId connection);
    bool is_mover(ConnectionId connection) const { return mover_ == connection; }

    // ---- orders ----
    bool ready() const { return ready_.has_value(); }
    /// These three: what a mover that is ready has said. Port 0: it does not listen; text: why no more ways.
    std::uint16_t port() const { return ready_ ? ready_->port : std::uint16_t{0}; }
    std::uint16_t ways() const { return ready_ ? ready_->ways : std::uint16_t{0}; }
    const std::string &text() const;
    /// Whether what it leaves out or fills in comes to every byte, also between chunks.
    bool exact() const { return ready_ && ready_->exact; }
    /// How many descriptors of what is lent one order can take beside those of the object itself; 0: this
    /// mover is of a version that takes none.
    std::size_t room_for_own(std::size_t segments) const;

    /// `expecting` once (ok: it may be sent now), then `arrived` once, unless `expecting` failed. Until then
    /// the memory is the mover's: one that does not answer in time is killed, and the order ends when it is
    /// gone. unavailable: no mover is ready, or it has died or refused; resource_exhausted: too many orders
    /// are open.
    /// `spared`: bytes of it that were here already.
    Order receive(ObjectToReceive object, std::function<void(Status)> expecting,
                  std::function<void(Status, std::uint64_t spared)> arrived);
    /// `retry`: another attempt, with another key, may do better. corrupt: this node's memory does not hold
    /// the object any more.
    Order send(ObjectToSend object, std::function<void(Status, bool retry)> sent);
    /// `xxh3`: of the sum, where it was the last part and no object. Until then the memory is the mover's, as
    /// that of receive().
    Order fold(PartToFold part, std::function<void(Status, std::uint64_t xxh3)> folded);
    /// `xxh3`: of the bytes. The memory is the mover's until then, as that of receive().
    Order measure(NodeToMeasure what, std::function<void(const NodeMeasure &)> measured);
    /// Its callbacks still come.
    void cancel(Order order);
    /// false: it has ended, or is of a mover that is to go, whose memory it stays until that is gone.
    bool is_worked_on(Order order) const;

    std::unique_ptr<local::MoverStatusT> status() const;

  private:
    struct Entry {
        std::function<void(Status)>
            expecting;  ///< none: it may have been sent already, or is not to be received
        std::function<void(Status, std::uint64_t spared)> arrived;
        std::function<void(Status, bool retry)> sent;
        std::function<void(Status, std::uint64_t xxh3)> folded = {};
        std::function<void(const NodeMeasure &)> measured = {};
        ConnectionId mover = 0;  ///< whose it is
        EventLoop::Handle timer = {};
    };
    struct Mover {
        std::int32_t pid = 0;
        std::shared_ptr<LocalProcess> process;
    };

    local::MoverWelcomeT welcome() const;
    std::uint16_t allowed_ways() const;
    void on_ready(const local::MoverReadyT &ready);
    void on_expecting(const local::ExpectingObjectT &answer);
    void on_arrived(const local::ObjectArrivedT &answer);
    void on_sent(const local::ObjectSentT &answer);
    void on_measured(const local::NodeMeasuredT &answer);
    void on_folded(const local::ObjectFoldedT &answer);
    bool is_open(Order order, ConnectionId mover) const;
    /// From now on this node has none.
    void leave();
    /// The present one is to go; what it has is its own until it has gone.
    void expel();
    void forget(ConnectionId successor);
    void end_orders_of(ConnectionId mover);

    Status check_order(const std::vector<ArenaSegment> &segments) const;
    Status check_transfer(const std::vector<ArenaSegment> &segments,
                          const std::vector<std::uint8_t> &key) const;
    void add(Order order, Entry entry, std::chrono::milliseconds wait);
    void watch(Order order, EventLoop::Time time);
    void on_overdue(Order order);
    void push_cancel(Order order);
    /// Now and then, while it has orders; one that stands still answers nothing.
    void call_mover();
    void close(Order order, const Status &status, bool retry);
    /// Tells the last of it.
    void end(const Entry &entry, const Status &status, bool retry);
    void later(EventLoop::Task task);

    Services services_;
    const std::string address_;
    Hooks hooks_;
    std::map<ConnectionId, Mover> connected_;  ///< the mover, and those that are to go
    std::optional<ConnectionId> mover_;
    std::optional<local::MoverReadyT> ready_;
    std::map<Order, Entry> open_;
    Order last_order_ = 0;
    std::optional<EventLoop::Time> called_at_;  ///< the call that is not answered yet
    EventLoop::Handle call_timer_;
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dlrover::daemon
