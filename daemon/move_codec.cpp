// SPDX-License-Identifier: Apache-2.0
#include "daemon/move_codec.h"

#include "daemon/parity.h"
#include "daemon/seal_bounds.h"
#include "move_generated.h"
#include "proto/codec.h"

namespace dlrover::daemon {
namespace {

namespace wire = proto::move;
constexpr std::size_t max_text_bytes = 1024, key_bytes = 32, max_shared = 4096;

/// A piece of the table of an object that can be, and not empty; or the reason why there is none.
bool is_piece(const MoveWord &word) {
    const auto &object = word.object;
    if (word.bytes.empty()) return !word.text.empty();
    return object.train_step == word.id.step.value() && is_within(object, INT64_MAX) &&
           object.shared.size() <= max_shared && word.bytes.size() <= max_table_piece_bytes &&
           word.at < object.table_bytes && word.bytes.size() <= object.table_bytes - word.at;
}

bool is_whole(const MoveWord &word) {
    using Kind = MoveWord::Kind;
    const auto &object = word.object;
    if (word.kind == Kind::Table) return word.key.empty() && is_piece(word);
    if (!word.bytes.empty()) return false;
    if (word.kind == Kind::Try) return word.key.empty() && object.data_bytes > 0;
    if (word.kind == Kind::Accept || word.kind == Kind::TryAccept)
        return word.key.size() == key_bytes && word.port != 0;
    if (word.kind != Kind::Offer) return word.key.empty();
    bool possible = is_rank(word.rank) ? word.world_size > word.rank.value() : word.world_size > 0;
    return possible && object.train_step == word.id.step.value() && is_within(object, INT64_MAX) &&
           object.shared.size() <= max_shared;
}

}  // namespace

proto::Bytes encode_move_word(const MoveWord &word) {
    wire::WordT out;
    out.kind = word.kind;
    out.number = word.number;
    out.generation =
        std::make_unique<proto::Generation>(word.id.generation.term.value(), word.id.generation.number);
    out.train_step = word.id.step.value();
    out.rank = word.rank.value();
    out.world_size = word.world_size;
    out.ways = word.ways;
    bool of_object = word.kind == MoveWord::Kind::Offer || word.kind == MoveWord::Kind::Table ||
                     word.kind == MoveWord::Kind::Try;
    if (of_object) out.object = std::make_unique<proto::local::SealT>(word.object);
    out.asked = word.asked;
    out.port = word.port;
    out.way = word.way;
    out.transfer = word.transfer;
    out.key = word.key;
    out.text = word.text.substr(0, max_text_bytes);
    out.at = word.at;
    out.bytes = word.bytes;
    return proto::encode<wire::Word>(out, wire::WordIdentifier());
}

Result<MoveWord> decode_move_word(std::span<const std::uint8_t> bytes) {
    auto in = proto::decode<wire::Word>(bytes, wire::WordIdentifier());
    if (!in) return in.take_status();
    if (in->kind < MoveWord::Kind::Fetch || in->kind > MoveWord::Kind::TryFailed)
        return Status(Code::corrupt, "a word about an object is of an unknown kind");
    MoveWord word;
    word.kind = in->kind;
    word.number = in->number;
    if (in->generation) word.id.generation = {Term(in->generation->term()), in->generation->number()};
    word.id.step = TrainStep(in->train_step);
    word.rank = Rank(in->rank);
    word.world_size = in->world_size;
    word.ways = in->ways;
    if (in->object) word.object = std::move(*in->object);
    word.asked = in->asked;
    word.port = in->port;
    word.way = in->way;
    word.transfer = in->transfer;
    word.key = std::move(in->key);
    word.text = std::move(in->text);
    word.at = in->at;
    word.bytes = std::move(in->bytes);
    if (in->train_step > INT64_MAX || word.text.size() > max_text_bytes || !is_whole(word))
        return Status(Code::corrupt, "a word about an object has a value out of range");
    return word;
}

}  // namespace dlrover::daemon
