// SPDX-License-Identifier: Apache-2.0
// What another node's daemon says about objects on their way from node to node.
#include "daemon/move_codec.h"
#include "fuzz.h"

namespace dlrover::fuzz {

using namespace daemon;

bool run(std::span<const std::uint8_t> input) {
    auto word = decode_move_word(input);
    if (!word) return false;
    require(word->kind != MoveWord::Kind::None, "a word has a kind");
    require(word->text.size() <= 1024, "the text is bounded");
    bool offers = word->kind == MoveWord::Kind::Offer, accepts = word->kind == MoveWord::Kind::Accept;
    require(!offers || word->object.data_bytes <= word->object.table_offset, "data lies before its table");
    bool tells = word->kind == MoveWord::Kind::Table;
    require(tells || word->bytes.empty(), "a table's bytes come with nothing else");
    require(word->bytes.empty() || word->at + word->bytes.size() <= word->object.table_bytes,
            "a piece lies in its table");
    require(accepts == (word->key.size() == 32), "who accepts sends a key, nobody else");
    auto again = encode_move_word(*word);
    auto twice = decode_move_word(again);
    require(twice.ok() && encode_move_word(*twice) == again, "what was taken goes on as it is");
    return true;
}

std::vector<Bytes> seeds() {
    std::vector<Bytes> all;
    for (auto kind = MoveWord::Kind::Fetch; kind <= MoveWord::Kind::Wait;
         kind = static_cast<MoveWord::Kind>(static_cast<int>(kind) + 1)) {
        MoveWord word;
        word.kind = kind;
        word.number = 1700000000000000;
        word.id = {{Term((std::uint64_t{2} << 32) | 1), 3}, TrainStep(1200)};
        word.rank = Rank(5);
        if (kind == MoveWord::Kind::Table) {
            word.at = 1024;
            word.bytes.assign(3072, 7);
        }
        if (kind == MoveWord::Kind::Offer || kind == MoveWord::Kind::Table) {
            word.world_size = kind == MoveWord::Kind::Offer ? 8 : 0;
            word.asked = kind == MoveWord::Kind::Offer;
            word.ways = kind == MoveWord::Kind::Offer ? 3 : 0;
            word.object.train_step = 1200;
            word.object.data_bytes = 1u << 20;
            word.object.table_offset = 1u << 20;
            word.object.table_bytes = 4096;
            word.object.ledger = {1, 2, 3};
            word.object.shared.push_back(std::make_unique<proto::local::SharedWithT>());
        }
        if (kind == MoveWord::Kind::Accept) {
            word.port = 40001;
            word.way = 1;
            word.transfer = 77;
            word.key.assign(32, 9);
        }
        if (kind == MoveWord::Kind::Refuse) word.text = "no slot is free there";
        auto bytes = encode_move_word(word);
        all.emplace_back(bytes.begin(), bytes.end());
    }
    return all;
}

}  // namespace dlrover::fuzz
