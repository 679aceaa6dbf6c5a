// SPDX-License-Identifier: Apache-2.0
// The framing of every stream: first byte: how the stream is cut into reads.
#include "fuzz.h"
#include "proto/frame.h"

namespace dlrover::fuzz {
namespace {

struct Outcome {
    std::vector<proto::Bytes> frames;
    bool failed = false;
};

Outcome read_in_pieces(std::span<const std::uint8_t> stream, std::size_t piece) {
    proto::FrameReader reader;
    Outcome outcome;
    while (!stream.empty() && !outcome.failed) {
        auto part = stream.first(std::min(piece, stream.size()));
        outcome.failed = !reader.feed(part).ok();
        while (auto frame = reader.next()) {
            require(!frame->empty() && frame->size() <= proto::max_frame_bytes, "a frame has a legal size");
            outcome.frames.push_back(std::move(*frame));
        }
        stream = stream.subspan(part.size());
    }
    return outcome;
}

}  // namespace

bool run(std::span<const std::uint8_t> input) {
    if (input.empty()) return false;
    auto whole = read_in_pieces(input.subspan(1), input.size());
    auto pieces = read_in_pieces(input.subspan(1), 1 + input[0] % 16);
    require(whole.failed == pieces.failed, "reads may be cut anywhere");
    // Frames before a bad one are delivered only as far as they had been cut off by then.
    if (!whole.failed)
        require(whole.frames == pieces.frames, "the same frames come, however the reads are cut");
    return !whole.failed && !whole.frames.empty();
}

std::vector<Bytes> seeds() {
    Bytes one{0}, two{7};
    auto add = [](Bytes &to, std::size_t bytes) {
        auto frame = proto::make_frame(Bytes(bytes, 9));
        to.insert(to.end(), frame.begin(), frame.end());
    };
    add(one, 1);
    add(two, 300);
    add(two, 5);
    return {one, two};
}

}  // namespace dlrover::fuzz
