// SPDX-License-Identifier: Apache-2.0
// What another node's daemon says about checkpoints on their way to storage.
#include "daemon/flush_codec.h"
#include "fuzz.h"

namespace dlrover::fuzz {

using namespace daemon;

bool run(std::span<const std::uint8_t> input) {
    auto word = decode_flush_word(input);
    if (!word) return false;
    require(word->kind != FlushWord::Kind::None, "a word has a kind");
    require(word->text.size() <= 1024, "the text is bounded");
    for (const auto *ranks : {&word->ranks, &word->lacks}) {
        require(ranks->size() <= max_flush_ranks, "the lists are bounded");
        for (Rank rank : *ranks) require(rank.value() < word->world_size, "a rank is one of the world");
    }
    auto again = decode_flush_word(encode_flush_word(*word));
    require(again.ok() && *again == *word, "what was taken goes on as it is");
    return true;
}

std::vector<Bytes> seeds() {
    std::vector<Bytes> all;
    for (auto kind = FlushWord::Kind::Begin; kind <= FlushWord::Kind::Lacks;
         kind = static_cast<FlushWord::Kind>(static_cast<int>(kind) + 1)) {
        FlushWord word;
        word.kind = kind;
        word.order = 1700000000000000;
        word.id = {{Term((std::uint64_t{2} << 32) | 1), 3}, TrainStep(1200)};
        word.world_size = 8;
        if (kind == FlushWord::Kind::Trouble) word.text = "the disk is full";
        if (kind == FlushWord::Kind::Lacks) word.lacks = word.ranks = {Rank(3), Rank(7)};
        auto bytes = encode_flush_word(word);
        all.emplace_back(bytes.begin(), bytes.end());
    }
    return all;
}

}  // namespace dlrover::fuzz
