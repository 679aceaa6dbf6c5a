// SPDX-License-Identifier: Apache-2.0
#include "daemon/flush_codec.h"

#include <algorithm>

#include "flush_generated.h"
#include "proto/codec.h"

namespace dlrover::daemon {
namespace {

namespace wire = proto::flush;
constexpr std::size_t max_text_bytes = 1024;

std::vector<std::uint32_t> pack(const std::vector<Rank> &ranks) {
    std::vector<std::uint32_t> out;
    for (std::size_t i = 0; i < std::min(ranks.size(), max_flush_ranks); ++i) out.push_back(ranks[i].value());
    return out;
}

/// False: there are too many, or one that the world does not have.
bool unpack(const std::vector<std::uint32_t> &ranks, std::uint32_t world_size, std::vector<Rank> &out) {
    for (std::uint32_t rank : ranks) out.emplace_back(rank);
    return ranks.size() <= max_flush_ranks &&
           std::ranges::all_of(ranks, [&](std::uint32_t rank) { return rank < world_size; });
}

}  // namespace

proto::Bytes encode_flush_word(const FlushWord &word) {
    wire::WordT out;
    out.kind = word.kind;
    out.order = word.order;
    out.generation =
        std::make_unique<proto::Generation>(word.id.generation.term.value(), word.id.generation.number);
    out.train_step = word.id.step.value();
    out.world_size = word.world_size;
    out.text = word.text.substr(0, max_text_bytes);
    out.ranks = pack(word.ranks);
    out.lacks = pack(word.lacks);
    return proto::encode<wire::Word>(out, wire::WordIdentifier());
}

Result<FlushWord> decode_flush_word(std::span<const std::uint8_t> bytes) {
    auto in = proto::decode<wire::Word>(bytes, wire::WordIdentifier());
    if (!in) return in.take_status();
    if (in->kind < FlushWord::Kind::Begin || in->kind > FlushWord::Kind::Lacks)
        return Status(Code::corrupt, "a word about a flush is of an unknown kind");
    if (in->text.size() > max_text_bytes || in->train_step > INT64_MAX)
        return Status(Code::corrupt, "a word about a flush has a value out of range");
    FlushWord word;
    word.kind = in->kind;
    word.order = in->order;
    if (in->generation) word.id.generation = {Term(in->generation->term()), in->generation->number()};
    word.id.step = TrainStep(in->train_step);
    word.world_size = in->world_size;
    word.text = std::move(in->text);
    if (!unpack(in->ranks, word.world_size, word.ranks) || !unpack(in->lacks, word.world_size, word.lacks))
        return Status(Code::corrupt, "a word about a flush names ranks that can not be");
    if (word.kind == FlushWord::Kind::Begin && word.world_size == 0)
        return Status(Code::corrupt, "a checkpoint of no ranks");
    return word;
}

}  // namespace dlrover::daemon
