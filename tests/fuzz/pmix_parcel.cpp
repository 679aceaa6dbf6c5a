// SPDX-License-Identifier: Apache-2.0
// What another node's dlrover-pmixd says: parcels, and the messages that come in them.
#include "fuzz.h"
#include "pmix_server/exchange.h"
#include "pmix_server/group_part.h"

namespace dlrover::fuzz {
namespace {

using namespace pmix;

World world() {
    World w;
    w.name_space = "dlrover.7.0.g1";
    w.nodes = {"n1", "n2", "n3"};
    w.ranks_per_node = {2, 2, 1};
    return w;
}

/// Into a node in the midst of a fence and of a modex.
void give(std::span<const std::uint8_t> input) {
    Exchange::Hooks hooks;
    std::size_t finished = 0;
    hooks.send = [](std::uint32_t to, const Parcel &parcel) {
        require(to < 3 && parcel.bytes.size() <= max_piece_bytes, "what goes out is bounded");
    };
    hooks.finish = [&](Exchange::Token, Outcome, const proto::Bytes &) { ++finished; };
    hooks.look_up = [](std::uint32_t, std::uint64_t, std::uint32_t) {};
    hooks.told = [&](Exchange::Token, Outcome, const std::vector<Notice> &) { ++finished; };
    Exchange exchange(world(), Board(), hooks);
    exchange.begin(Time(0));
    (void)exchange.fence(Time(0), {{}, true, {}, {1}, Time::max(), 1}).ok();
    (void)exchange.modex(Time(0), 3, Time::max(), 2).ok();
    (void)exchange
        .find(Time(0), {{"dlrover.7.0.g1", 0, "n1"}, {"a"}, NoticeRange::Group, true, 0}, Time::max(), 3)
        .ok();
    Parcel piece;
    piece.kind = proto::pmix::ParcelKind::Piece;
    piece.total = static_cast<std::uint32_t>(input.size());
    piece.bytes.assign(input.begin(), input.end());
    for (std::uint32_t from : {1u, 2u, 9u}) exchange.receive(Time(0), from, piece);
    exchange.tick(Time(1000000000));
    exchange.stop();
    require(finished == 3, "everything is answered once");
}

std::vector<Message> board_messages() {
    Change change;
    change.by = {"dlrover.7.0.g1", 1, "n2"};
    Notice &notice = change.notices.emplace_back();
    notice.key = "a";
    notice.name_space = change.by.name_space;
    notice.node = change.by.node;
    notice.value = {1, 2};
    Board board;
    (void)board.apply(change, change.by.name_space);
    std::vector<Message> all(4);
    all[0].kind = proto::pmix::MessageKind::Offer;
    all[0].bytes = encode_board(board, false);
    all[1].kind = proto::pmix::MessageKind::Board;
    all[1].bytes = encode_board(board, true);
    all[2].kind = proto::pmix::MessageKind::Ask;
    all[2].bytes = encode_change(change);
    all[3].kind = proto::pmix::MessageKind::Changed;
    all[3].bytes = encode_change(change);
    return all;
}

}  // namespace

bool run(std::span<const std::uint8_t> input) {
    auto parcel = decode_parcel(input);
    if (parcel.ok() && parcel->kind == proto::pmix::ParcelKind::Piece)
        require(parcel->at + parcel->bytes.size() <= parcel->total, "a piece lies in its message");
    if (!input.empty() && input.size() <= max_piece_bytes) give(input);
    auto message = decode_message(input);
    if (message.ok()) require(message->bytes.size() <= max_data_bytes, "data is bounded");
    auto group = join_parts(input);
    if (group.ok()) require(group->data.size() <= input.size(), "no more than there is");
    return parcel.ok() || message.ok() || group.ok();
}

std::vector<Bytes> seeds() {
    std::vector<Bytes> all;
    auto add = [&](const proto::Bytes &bytes) { all.emplace_back(bytes.begin(), bytes.end()); };
    for (auto kind : {proto::pmix::MessageKind::Contribute, proto::pmix::MessageKind::Result,
                      proto::pmix::MessageKind::Fetch, proto::pmix::MessageKind::Data}) {
        Message message;
        message.kind = kind;
        message.number = 1;
        message.rank = 1;
        message.bytes = {1, 2, 3};
        add(encode_message(message));
    }
    proto::Bytes parts;
    for (std::uint8_t part : {1, 2}) append_part({part, {part}}, parts);
    add(parts);
    for (const Message &message : board_messages()) add(encode_message(message));
    Parcel parcel;
    parcel.kind = proto::pmix::ParcelKind::Piece;
    parcel.total = 5;
    parcel.bytes = {1, 2, 3};
    add(encode_parcel(parcel));
    parcel.kind = proto::pmix::ParcelKind::Received;
    add(encode_parcel(parcel));
    return all;
}

}  // namespace dlrover::fuzz
