// SPDX-License-Identifier: Apache-2.0
// What another node's daemon says about a node that is to join a group.
#include "daemon/join_codec.h"
#include "fuzz.h"

namespace dlrover::fuzz {

using namespace daemon;

bool run(std::span<const std::uint8_t> input) {
    auto word = decode_join_word(input);
    if (!word) return false;
    require(word->kind != join::Kind::None, "a word has a kind");
    require(word->companion_job != 0, "a word is about a job");
    require(word->text.size() <= 4096, "the text is bounded");
    bool has_step = word->kind == join::Kind::Ask || word->kind == join::Kind::Welcome;
    require(has_step == (word->step != nullptr), "a step is there where it has to be");
    auto again = encode_join_word(*word);
    auto twice = decode_join_word(again);
    require(twice.ok() && encode_join_word(*twice) == again, "what was taken goes on as it is");
    return true;
}

std::vector<Bytes> seeds() {
    std::vector<Bytes> all;
    for (auto kind : {join::Kind::Ask, join::Kind::Wait, join::Kind::Refused, join::Kind::Welcome}) {
        join::WordT word;
        word.kind = kind;
        word.companion_job = 58;
        if (kind == join::Kind::Wait) word.companion_step = 3;
        if (kind == join::Kind::Wait) word.leader = "n2";
        if (kind == join::Kind::Refused) word.text = "the step ends";
        if (kind == join::Kind::Ask || kind == join::Kind::Welcome) {
            word.step = std::make_unique<proto::StepRegistrationT>();
            word.step->job_id = 58;
            word.step->node_names = {"n5"};
            word.step->tasks_per_node = {2};
            word.step->options = std::make_unique<proto::ElasticOptionsT>();
        }
        if (kind == join::Kind::Welcome) {
            word.step->companion_jobs = {58, 57};
            word.step->join_steps = {0, 3};
            word.lineage = "lab/1000/train/0";
            word.user = "alice";
            word.workers = 2;
        }
        auto bytes = encode_join_word(word);
        all.emplace_back(bytes.begin(), bytes.end());
    }
    return all;
}

}  // namespace dlrover::fuzz
