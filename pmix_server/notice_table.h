// SPDX-License-Identifier: Apache-2.0
// What programs publish and look up in one generation, as one node sees it. The world's first node decides in
// which order boards change; each node has the whole board. Who looks something up asks that node first, so
// that he sees all that had been answered before. Pure.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "pmix_server/board.h"
#include "pmix_server/courier.h"

namespace dlrover::pmix {

class NoticeTable {
  public:
    using Token = std::uint64_t;
    struct Hooks {
        std::function<void(const std::vector<std::uint32_t> &to, const Message &message)> send;
        /// Once for each request that was taken, also from inside the call that makes it.
        std::function<void(Token token, Outcome outcome, const std::vector<Notice> &found)> told;
    };
    static constexpr std::size_t max_open = 4096, max_open_bytes = 4 * Board::max_bytes;

    NoticeTable(const World &world, Board board, Hooks hooks);

    /// The nodes settle on the board that has come furthest in former generations. Once.
    void begin();
    /// resource_exhausted: nothing follows.
    Status change(const Change &change, Time deadline, Token token);
    Status look_up(NoticeQuery query, Time deadline, Token token);
    /// Messages of another node, from Offer on.
    void receive(std::uint32_t from, const Message &message);
    void tick(Time now);
    Time next_tick() const;
    void lose(std::uint32_t place);
    void stop();
    /// For the next generation.
    Board release() { return std::move(board_); }

  private:
    struct Request {
        proto::Bytes change;  ///< empty: none
        NoticeQuery query;    ///< else
        Time deadline = Time::max();
        Token token = 0;
        std::size_t bytes = 0;
        bool asked = false;  ///< a query: what there is now may be looked at
    };
    using Requests = std::map<std::uint64_t, Request>;  ///< by number

    bool is_first() const { return world_.place == 0; }
    Status take(Request request);
    void ask(std::uint64_t number, const Request &request);
    /// On the first node.
    void on_offer(std::uint32_t from, const Message &message);
    void settle_when_all_are_there();
    void settle();
    void on_ask(std::uint32_t from, const Message &message);
    /// On all.
    void on_board(std::uint32_t from, const Message &message);
    void on_changed(const Message &message);
    void enter();
    void answer(std::uint64_t number, Outcome outcome);
    bool look(std::uint64_t number);
    void look_again();
    void finish(Requests::iterator it, Outcome outcome, const std::vector<Notice> &found);
    template <typename Is>
    void end_those(Outcome outcome, Is is);
    std::vector<std::uint32_t> others() const;

    const World &world_;
    Hooks hooks_;
    Board board_;
    bool settled_ = false, begun_ = false, stopped_ = false;
    Requests open_;
    std::size_t open_bytes_ = 0;
    std::uint64_t last_number_ = 0;
    std::set<std::uint32_t> lost_;
    std::map<std::uint32_t, BoardVersion> offers_;  ///< on the first node, until it is settled
    std::optional<std::uint32_t> wanted_from_;      ///< whose board is to come
};

}  // namespace dlrover::pmix
