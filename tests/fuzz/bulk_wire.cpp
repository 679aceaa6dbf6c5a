// SPDX-License-Identifier: Apache-2.0
// Messages of a bulk connection before anybody has proved anything. The first byte says which.
#include "transport/bulk_wire.h"

#include <algorithm>

#include "fuzz.h"

namespace dlrover::fuzz {

using namespace transport;

namespace {

template <typename Message>
std::optional<std::span<const std::uint8_t, Message::wire_bytes>> exactly(std::span<const std::uint8_t> in) {
    if (in.size() != Message::wire_bytes) return {};
    return in.first<Message::wire_bytes>();
}

template <typename Array>
void same(const Array &made, std::span<const std::uint8_t> in, const char *what) {
    require(std::equal(made.begin(), made.end(), in.begin(), in.end()), what);
}

bool run_block(std::span<const std::uint8_t> input) {
    constexpr std::uint64_t total = 5 * bulk_block_bytes + 3;
    auto bytes = exactly<BulkBlock>(input);
    if (!bytes) return false;
    BulkBlock block = decode_block(*bytes);
    same(encode(block), input, "a block's header has one form");
    if (!check_block(block, block.number, total).ok()) return false;
    require(block.bytes == 0 || (block.offset < total && block.bytes <= total - block.offset),
            "a block lies in its transfer");
    return true;
}

bool run_spared(std::span<const std::uint8_t> input) {
    constexpr std::uint64_t blocks = 7;
    if (input.size() % BulkSpared::wire_bytes != 0) return false;
    auto spared = decode_spared(input, blocks);
    if (!spared) return false;
    std::uint64_t all = 0;
    for (const BulkSpared &run : *spared) {
        require(run.first < blocks && run.count <= blocks - run.first, "blocks are the transfer's own");
        all += run.count;
    }
    require(all <= blocks, "none is left out twice");
    same(encode(std::span<const BulkSpared>(*spared)), input, "what is left out has one form");
    return true;
}

}  // namespace

bool run(std::span<const std::uint8_t> input) {
    if (input.empty()) return false;
    auto rest = input.subspan(1);
    switch (input[0]) {
        case 0: {
            auto bytes = exactly<BulkGreeting>(rest);
            auto greeting = bytes ? decode_greeting(*bytes) : Status(Code::corrupt, "");
            if (greeting.ok()) require(greeting->stream < greeting->streams, "a stream is one of all");
            if (greeting.ok()) same(encode(*greeting), rest, "a greeting has one form");
            return greeting.ok();
        }
        case 1: {
            auto bytes = exactly<BulkAnswer>(rest);
            auto answer = bytes ? decode_answer(*bytes) : Status(Code::corrupt, "");
            if (answer.ok()) same(encode(*answer), rest, "an answer has one form");
            return answer.ok();
        }
        case 2: {
            auto bytes = exactly<BulkReceipt>(rest);
            auto receipt = bytes ? decode_receipt(*bytes) : Status(Code::corrupt, "");
            if (receipt.ok()) require(receipt->text_bytes <= max_bulk_text_bytes, "a text has a limit");
            return receipt.ok();
        }
        case 3:
            return run_block(rest);
        case 4:
            return run_spared(rest);
        default:
            return false;
    }
}

std::vector<Bytes> seeds() {
    auto seed = [](std::uint8_t kind, const auto &message) {
        Bytes bytes{kind};
        bytes.insert(bytes.end(), message.begin(), message.end());
        return bytes;
    };
    BulkGreeting greeting;
    greeting.methods = 1;
    greeting.streams = 2;
    greeting.transfer = 7;
    greeting.bytes = 4096;
    auto full = static_cast<std::uint32_t>(bulk_block_bytes);
    const std::vector<BulkSpared> spared = {{0, 2}, {4, 1}};
    return {seed(0, encode(greeting)),
            seed(1, encode(BulkAnswer{BulkMethod::ucx, false, {}})),
            seed(2, encode(BulkReceipt{Code::corrupt, 40})),
            seed(3, encode(BulkBlock{bulk_block_bytes, full, 9, 5})),
            seed(3, encode(BulkBlock{5 * bulk_block_bytes, 3, 1, 6})),
            seed(1, encode(BulkAnswer{BulkMethod::tcp, true, {}})),
            seed(1, encode(BulkAnswer{BulkMethod::tcp, true, {}, true})),
            seed(4, encode(std::span<const BulkSpared>(spared)))};
}

}  // namespace dlrover::fuzz
