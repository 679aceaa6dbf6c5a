// SPDX-License-Identifier: Apache-2.0
#include "daemon/join_codec.h"

#include "join_generated.h"
#include "proto/codec.h"

namespace dlrover::daemon {
namespace {

constexpr std::size_t max_text_bytes = 4096, max_name_bytes = 256, max_lineage_bytes = 4096;

bool is_whole(const join::WordT &word) {
    bool has_step = word.kind == join::Kind::Ask || word.kind == join::Kind::Welcome;
    if (word.companion_job == 0 || has_step != (word.step != nullptr)) return false;
    return word.kind != join::Kind::Welcome || (word.workers != 0 && !word.lineage.empty());
}

}  // namespace

proto::Bytes encode_join_word(const join::WordT &word) {
    return proto::encode<join::Word>(word, join::WordIdentifier());
}

Result<join::WordT> decode_join_word(std::span<const std::uint8_t> bytes) {
    auto word = proto::decode<join::Word>(bytes, join::WordIdentifier());
    if (!word) return word.take_status();
    if (word->kind < join::Kind::Ask || word->kind > join::Kind::Welcome)
        return Status(Code::corrupt, "a word about a new node is of an unknown kind");
    if (word->text.size() > max_text_bytes || word->leader.size() > max_name_bytes ||
        word->user.size() > max_name_bytes || word->lineage.size() > max_lineage_bytes || !is_whole(*word))
        return Status(Code::corrupt, "a word about a new node has a value out of range");
    return word;
}

}  // namespace dlrover::daemon
