// SPDX-License-Identifier: Apache-2.0
#include "daemon/pmix_codec.h"

#include "pmix_generated.h"
#include "proto/codec.h"

namespace dlrover::daemon {

namespace wire = proto::pmix;

proto::Bytes encode_pmix_word(const PmixWord &word) {
    wire::WordT out;
    out.generation =
        std::make_unique<proto::Generation>(word.generation.term.value(), word.generation.number);
    out.bytes = word.bytes;
    return proto::encode<wire::Word>(out, wire::WordIdentifier());
}

Result<PmixWord> decode_pmix_word(std::span<const std::uint8_t> bytes) {
    auto in = proto::decode<wire::Word>(bytes, wire::WordIdentifier());
    if (!in) return in.take_status();
    if (!in->generation || in->bytes.size() > max_parcel_bytes)
        return Status(Code::corrupt, "a word of PMIx has a value out of range");
    return PmixWord{{Term(in->generation->term()), in->generation->number()}, std::move(in->bytes)};
}

}  // namespace dlrover::daemon
