// SPDX-License-Identifier: Apache-2.0
// The fences of one generation, as one node sees them. The first of a fence's nodes collects what all
// contribute and sends it to all; one that fails, or for which a node has no room, fails for all. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "pmix_server/courier.h"

namespace dlrover::pmix {

class FenceTable {
  public:
    using Token = std::uint64_t;
    struct Hooks {
        std::function<void(const std::vector<std::uint32_t> &to, const Message &message)> send;
        /// Once for each join that was taken, never from inside it.
        std::function<void(Token token, Outcome outcome, const proto::Bytes &data)> finish;
    };
    struct Join {
        std::uint64_t ranks = 0;            ///< stands for who takes part
        std::vector<std::uint32_t> places;  ///< of their nodes, ascending, this one among them
        proto::Bytes data;                  ///< of this node's ranks
        Time deadline = Time::max();
        Token token = 0;
    };
    static constexpr std::size_t max_open = 4096, max_sets = 65536;
    static constexpr std::size_t max_held_bytes = std::size_t{64} << 20;  ///< of all open fences together
    /// So many more are known by their refusal alone.
    static constexpr std::size_t max_refused = max_open, max_refused_sets = max_sets;

    FenceTable(std::uint32_t self, Hooks hooks) : self_(self), hooks_(std::move(hooks)) {}

    /// All ranks of this node that take part are there. One too many ends with TooLarge. resource_exhausted:
    /// the ranks of far too many have been named; nothing follows, and nobody is told.
    Status join(Join join);
    /// Contribute and Result of another node.
    void receive(std::uint32_t from, Message message);
    /// Ends what was joined and is due.
    void tick(Time now);
    Time next_tick() const;
    /// Nothing comes from, or gets to, that place.
    void lose(std::uint32_t place);
    /// The generation ends.
    void stop();
    /// Finishes what has been decided; to be called after each of the above.
    void flush();

  private:
    struct Id {
        std::uint64_t ranks = 0, sequence = 0;
        friend auto operator<=>(const Id &, const Id &) = default;
    };
    struct Fence {
        std::optional<Token> token;  ///< joined here, and not over
        std::vector<std::uint32_t> places;
        std::map<std::uint32_t, proto::Bytes> data;  ///< on the first node: what has come
        std::size_t bytes = 0;                       ///< of these
        std::set<std::uint32_t> told;                ///< on the first node, after a failure
        std::optional<Outcome> failed;
        Time deadline = Time::max();
    };
    struct Finished {
        Token token = 0;
        Outcome outcome = Outcome::Done;
        proto::Bytes data;
    };
    using Fences = std::map<Id, Fence>;
    struct Ranks {
        std::uint64_t next = 0;  ///< number of their next fence
        bool refused = false;    ///< one set of ranks too many
    };

    bool is_over(const Id &id) const;
    void refuse(const Id &id, const Join &join);
    void refuse_late(const Id &id, std::uint32_t from, Outcome contributed);
    bool is_first(const Fence &fence) const { return fence.places.front() == self_; }
    void contribute(Fences::iterator it, std::uint32_t place, proto::Bytes data);
    void complete(Fences::iterator it);
    void fail(Fences::iterator it, Outcome outcome);
    void tell_failure(Fences::iterator it, std::uint32_t place);
    void drop_if_told(Fences::iterator it);
    /// Its data.
    std::map<std::uint32_t, proto::Bytes> release(Fence &fence);
    void erase(Fences::iterator it);
    void give(Fence &fence, Outcome outcome, proto::Bytes data = {});
    void send(const Id &id, const std::vector<std::uint32_t> &to, proto::pmix::MessageKind kind,
              Outcome outcome, const proto::Bytes &data);

    const std::uint32_t self_;
    Hooks hooks_;
    Fences fences_;
    std::size_t held_bytes_ = 0;
    std::map<std::uint64_t, Ranks> ranks_;
    std::vector<Finished> finished_;
    std::set<std::uint32_t> lost_;
    bool stopped_ = false;
};

}  // namespace dlrover::pmix
