// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/notice.h"

#include <algorithm>

#include "pmix_generated.h"
#include "pmix_server/board.h"
#include "proto/codec.h"

namespace dlrover::pmix {
namespace {

namespace wire = proto::pmix;
constexpr const char *change_identifier = "DLX4", *board_identifier = "DLX5";
constexpr std::size_t max_key_bytes = 511, max_name_bytes = 255;  // as in PMIx
constexpr std::size_t around_notice_bytes = 128;

bool is_range(NoticeRange range) {
    return range >= NoticeRange::Group && range <= NoticeRange::Process;
}

bool is_text(const std::string &text, std::size_t most) {
    return !text.empty() && text.size() <= most && text.find('\0') == std::string::npos;
}

bool is_notice(const Notice &notice) {
    return is_range(notice.range) && is_text(notice.key, max_key_bytes) &&
           is_text(notice.name_space, max_name_bytes) && is_text(notice.node, max_name_bytes) &&
           !notice.value.empty();
}

/// false: not all of them can be.
bool take_notices(std::vector<std::unique_ptr<Notice>> &from, std::vector<Notice> &to) {
    for (auto &notice : from) {
        if (!notice || !is_notice(*notice)) return false;
        to.push_back(std::move(*notice));
    }
    return true;
}

}  // namespace

std::size_t bytes_of(const Notice &notice) {
    return around_notice_bytes + notice.key.size() + notice.name_space.size() + notice.node.size() +
           notice.value.size();
}

proto::Bytes encode_change(const Change &change) {
    wire::ChangeT table;
    table.name_space = change.by.name_space;
    table.rank = change.by.rank;
    table.node = change.by.node;
    for (const Notice &notice : change.notices) table.notices.push_back(std::make_unique<Notice>(notice));
    table.take_down = change.take_down;
    table.keys = change.keys;
    table.any_range = !change.range;
    table.range = change.range.value_or(NoticeRange::Group);
    return proto::encode<wire::Change>(table, change_identifier);
}

Result<Change> decode_change(std::span<const std::uint8_t> bytes) {
    auto table = proto::decode<wire::Change>(bytes, change_identifier);
    if (!table) return table.take_status();
    Change change;
    change.by = {table->name_space, table->rank, table->node};
    change.take_down = table->take_down;
    change.keys = std::move(table->keys);
    if (!table->any_range) change.range = table->range;
    bool named =
        is_text(change.by.name_space, max_name_bytes) && is_text(change.by.node, max_name_bytes) &&
        std::ranges::all_of(change.keys, [](const auto &key) { return is_text(key, max_key_bytes); });
    bool some = change.take_down == table->notices.empty();
    if (!named || !some || !is_range(table->range) || !take_notices(table->notices, change.notices))
        return Status(Code::corrupt, "a change that can not be");
    return change;
}

proto::Bytes encode_board(const Board &board, bool whole) {
    wire::BoardT table;
    table.generation = std::make_unique<proto::Generation>(board.version.generation.term.value(),
                                                           board.version.generation.number);
    table.changes = board.version.changes;
    if (whole)
        board.each([&](const Notice &notice) { table.notices.push_back(std::make_unique<Notice>(notice)); });
    return proto::encode<wire::Board>(table, board_identifier);
}

Result<Board> decode_board(std::span<const std::uint8_t> bytes) {
    auto table = proto::decode<wire::Board>(bytes, board_identifier);
    if (!table) return table.take_status();
    Board board;
    std::vector<Notice> notices;
    if (!table->generation || !take_notices(table->notices, notices))
        return Status(Code::corrupt, "a board that can not be");
    board.version = {{Term(table->generation->term()), table->generation->number()}, table->changes};
    for (Notice &notice : notices)
        if (!board.put(std::move(notice))) return Status(Code::corrupt, "a board with too much on it");
    return board;
}

}  // namespace dlrover::pmix
