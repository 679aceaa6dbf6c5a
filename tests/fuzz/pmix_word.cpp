// SPDX-License-Identifier: Apache-2.0
// What another node's daemon brings for this one's dlrover-pmixd.
#include "daemon/pmix_codec.h"
#include "fuzz.h"

namespace dlrover::fuzz {

using namespace daemon;

bool run(std::span<const std::uint8_t> input) {
    auto word = decode_pmix_word(input);
    if (!word) return false;
    require(word->bytes.size() <= max_parcel_bytes, "the parcel is bounded");
    auto again = decode_pmix_word(encode_pmix_word(*word));
    require(again.ok() && *again == *word, "what was taken goes on as it is");
    return true;
}

std::vector<Bytes> seeds() {
    std::vector<Bytes> all;
    for (std::size_t size : {std::size_t{1}, std::size_t{300}, max_parcel_bytes}) {
        auto bytes = encode_pmix_word({{Term((std::uint64_t{2} << 32) | 1), 3}, Bytes(size, 7)});
        all.emplace_back(bytes.begin(), bytes.end());
    }
    return all;
}

}  // namespace dlrover::fuzz
