// SPDX-License-Identifier: Apache-2.0
// Everything that is published in a group: the same on each of its nodes. Pure.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "pmix_server/notice.h"
#include "pmix_server/world.h"

namespace dlrover::pmix {

/// How far a board has come: boards of the same version have the same on them, and a later one all that was
/// decided before it.
struct BoardVersion {
    GenerationId generation;
    std::uint64_t changes = 0;
    friend auto operator<=>(const BoardVersion &, const BoardVersion &) = default;
};

class Board {
  public:
    static constexpr std::size_t max_notices = 4096, max_bytes = std::size_t{1} << 20;

    /// Done: it is on the board; else nothing of it is. name_space: the present one. What ranks of former
    /// ones have left is replaced by whoever publishes it again, and taken down by whoever names it.
    Outcome apply(const Change &change, const std::string &name_space);
    std::vector<Notice> find(const NoticeQuery &query) const;
    /// Drops what does not go on into this generation.
    void enter(const World &world);
    /// false: there is no room for it.
    bool put(Notice notice);

    std::size_t size() const { return size_; }
    void each(const std::function<void(const Notice &)> &visit) const;

    BoardVersion version;

  private:
    Outcome post(const Change &change, const std::string &name_space);
    Outcome take_down(const Change &change, const std::string &name_space);
    template <typename Is>
    std::size_t remove(Is is);
    const Notice *same_scope(const Notice &notice) const;

    std::map<std::string, std::vector<Notice>> notices_;
    std::size_t size_ = 0, bytes_ = 0;
};

/// `whole`: with its notices; else only how far it is.
proto::Bytes encode_board(const Board &board, bool whole);
/// corrupt: the bytes do not verify, or a value is out of range.
Result<Board> decode_board(std::span<const std::uint8_t> bytes);

}  // namespace dlrover::pmix
