// SPDX-License-Identifier: Apache-2.0
// The dlrover-pmixd of one group's node, and what it says to those of the others. It is the user's: nothing
// that it says is believed but within bounds, and about its own group's present world.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/event_loop.h"
#include "common/settings.h"
#include "daemon/local_port.h"
#include "daemon/pmix_codec.h"
#include "daemon/records.h"

namespace dlrover::daemon {

/// Thread: the event loop's. `failed` and `ready` do not come from inside a call, nor after the end of this
/// object.
class PmixRelay {
  public:
    using Place = std::uint32_t;  ///< of a node in the world
    /// What one node may send to another in a moment, and in each second after it: links are everybody's.
    static constexpr std::uint64_t bytes_per_second = std::uint64_t{32} << 20;
    static constexpr std::chrono::seconds patience{15};  ///< for a server that serves the world
    /// The same where the ranks can begin without, and once this group has had to.
    static constexpr std::chrono::milliseconds short_patience{5000}, shortest_patience{500};
    static constexpr std::chrono::seconds word_interval{5};  ///< that there is no server here

    struct Services {
        EventLoop &loop;
        LocalPort &port;
        const Settings &settings;
    };
    struct Hooks {
        /// false: the daemon there is of a version without PMIx.
        std::function<bool(Place to, proto::Bytes word)> send;
        std::function<void()> ready;                         ///< variables() are there
        std::function<void(const std::string &why)> failed;  ///< the present world can not be served
        /// Its ranks here begin, or go on, without.
        std::function<void(const std::string &why)> missing;
        std::function<void(const local::PmixAbortedT &)> aborted;
        std::function<void(const local::PmixOverdueT &)> overdue;
        /// But for its number.
        std::function<local::PmixStateT()> state;
        std::function<local::PmixScaleReplyT(const local::PmixScaleRequestT &)> scale;
        std::function<local::PmixRestartReplyT(const local::PmixRestartRequestT &)> restart;
    };

    /// required: ranks do not begin without a server. Else they do, until one of this group on this node has
    /// connected to one.
    PmixRelay(Services services, Hooks hooks, bool required)
        : services_(services), hooks_(std::move(hooks)), required_(required) {}
    ~PmixRelay();
    PmixRelay(const PmixRelay &) = delete;
    PmixRelay &operator=(const PmixRelay &) = delete;

    // ---- the dlrover-pmixd of this node ----
    void on_hello(const Client &from, std::uint32_t id, const local::PmixHelloT &hello);
    /// false: no message of a dlrover-pmixd.
    bool on_message(const Client &from, const local::MessageT &message);
    void on_gone(ConnectionId connection);

    // ---- the group ----
    /// This node has ranks in it.
    void on_world(local::PmixWorldT world);
    /// It has none in the present world.
    void on_no_world();
    /// Workers of this generation and older ones are to end.
    void on_stop(local::PmixStopT stop);
    /// About the present world: its ranks may hear of it, best effort.
    void on_event(local::PmixEventT event);
    /// Ranks of the present world have been started by its variables, or (resumed) by an earlier daemon.
    void on_started() { started_ = true; }
    void on_resumed();
    void on_word(Place from, std::span<const std::uint8_t> payload);
    /// Of the present world, on this node alone.
    std::unique_ptr<local::PmixStatusT> status() const;
    /// Of the present world's ranks, but for PMIX_RANK; none: they can not be started yet. Empty: they begin
    /// without a server.
    const std::vector<std::string> *variables() const { return variables_ ? &*variables_ : nullptr; }

  private:
    struct Allowance {
        std::uint64_t bytes = 0;
        EventLoop::Time at{0};
    };
    void push_world();
    void push_state(std::uint64_t number);
    /// Answers with what `ask` says. Where the group knows of no ranks, nobody could have asked.
    template <typename Ask, typename Request>
    void push_reply(const Ask &ask, const Request &request);
    void on_ready(const local::PmixReadyT &ready);
    void on_parcel(const local::PmixParcelT &parcel);
    void tell_unreachable(Place place, const std::string &why);
    bool allow(Place to, std::size_t bytes);
    void expect_server();
    void fail(const std::string &why);
    void go_without(const std::string &why);
    void tell_others();
    void send_word(Place to, proto::Bytes bytes);
    void later(EventLoop::Task task);
    bool is_present(const std::unique_ptr<proto::Generation> &generation) const {
        return world_ && from_proto(generation) == from_proto(world_->generation);
    }

    Services services_;
    Hooks hooks_;
    bool required_;
    std::optional<ConnectionId> server_;
    bool serves_ = false;   ///< that one has served the present world from its start on
    bool started_ = false;  ///< ranks of the present world
    bool failed_ = false;
    bool was_missing_ = false;                ///< in this world or one before
    std::optional<local::PmixWorldT> world_;  ///< with ranks here
    std::optional<std::vector<std::string>> variables_;
    std::map<Place, Allowance> allowances_;
    std::set<Place> unreachable_;
    EventLoop::Handle server_timer_, word_timer_;
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace dlrover::daemon
