// SPDX-License-Identifier: Apache-2.0
// A manifest on storage that others may have written to. The input is its lines without the checksum: whoever
// can write it can also sum it up.
#include "ckpt/manifest.h"

#include "ckpt/block_kernel.h"
#include "fuzz.h"

namespace dlrover::fuzz {
namespace {

constexpr std::size_t tail_bytes = 30;  // the last line

std::string with_checksum(std::string_view lines) {
    char last[64];
    std::uint64_t hash = ckpt::block_kernel().hash(lines.data(), lines.size());
    int n = std::snprintf(last, sizeof last, "\n \"xxh3\": \"%016llx\"}\n",
                          static_cast<unsigned long long>(hash));
    return std::string(lines) + std::string(last, static_cast<std::size_t>(n));
}

}  // namespace

bool run(std::span<const std::uint8_t> input) {
    std::string text = with_checksum(text_of(input));
    auto manifest = ckpt::decode_manifest(text);
    if (!manifest) return false;
    for (std::size_t i = 0; i < manifest->ranks.size(); ++i)
        require(manifest->ranks[i].rank.value() == i, "ranks are in order");
    auto again = ckpt::encode_manifest(*manifest);
    require(again.ok() && *again == text, "one manifest has one text");
    return true;
}

std::vector<Bytes> seeds() {
    std::vector<Bytes> all;
    for (std::size_t ranks : {1, 3}) {
        ckpt::Manifest manifest{{{Term(1), 2}, TrainStep(5)}, "lab/\"1000\"/\x01\xc3\xa4", {}, {}};
        if (ranks > 1) manifest.index = ckpt::FileSum{100, 7};
        for (std::size_t i = 0; i < ranks; ++i)
            manifest.ranks.push_back({Rank(static_cast<std::uint32_t>(i)), 4096 * i, i, ~i});
        auto text = ckpt::encode_manifest(manifest);
        require(text.ok(), "the encoder takes a proper manifest");
        all.push_back(bytes_of(std::string_view(*text).substr(0, text->size() - tail_bytes)));
    }
    return all;
}

}  // namespace dlrover::fuzz
