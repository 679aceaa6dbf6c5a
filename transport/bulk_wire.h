// SPDX-License-Identifier: Apache-2.0
// What two movers say to each other on a bulk connection (docs/protocol-mover.md). Pure: bytes in, values
// out.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "transport/secure_channel.h"

namespace dlrover::transport {

inline constexpr std::uint16_t bulk_protocol = 1;
/// What one header announces, but for the last one of a transfer, which may be shorter.
inline constexpr std::uint64_t bulk_block_bytes = std::uint64_t{1} << 18;
inline constexpr std::uint16_t max_bulk_streams = 16;
inline constexpr std::size_t max_bulk_text_bytes = 512, max_bulk_place_bytes = 65536;

/// How the bytes travel. A set of them has the bits of its members.
enum class BulkMethod : std::uint16_t { tcp = 1, ucx = 2 };
using BulkMethods = std::uint16_t;
constexpr bool contains(BulkMethods set, BulkMethod method) noexcept {
    return (set & static_cast<BulkMethods>(method)) != 0;
}

/// In the methods of a greeting: what the receiving side has already need not be sent; in the method of its
/// answer: it will say what that is.
inline constexpr BulkMethods bulk_spares = 4;
/// In the methods of a greeting: the sending side's blocks need no checksums; in the method of the answer:
/// they shall have none, the receiving side compares the whole with its own.
inline constexpr BulkMethods bulk_unsummed = 8;

using BulkNonce = std::array<std::uint8_t, nonce_bytes>;
using BulkMac = std::array<std::uint8_t, mac_bytes>;

/// First message, from the sending side: which transfer this is a stream of.
struct BulkGreeting {
    static constexpr std::size_t wire_bytes = 64;
    BulkMethods methods = 0;  ///< those that the sending side can
    std::uint16_t stream = 0, streams = 0;
    std::uint64_t transfer = 0, bytes = 0;
    BulkNonce nonce{};
};
/// The receiving side's answer; its MAC proves that it has the transfer's key.
struct BulkAnswer {
    static constexpr std::size_t wire_bytes = 48;
    BulkMethod method = BulkMethod::tcp;
    bool spares = false;
    BulkNonce nonce{};
    bool unsummed = false;
};
/// Bytes that the receiving side can take from elsewhere, by what tells them from all others.
struct BulkHave {
    static constexpr std::size_t wire_bytes = 24;
    std::uint64_t piece = 0, bytes = 0, checksum = 0;
    friend auto operator<=>(const BulkHave &, const BulkHave &) = default;
};
/// Blocks in a row that are not sent.
struct BulkSpared {
    static constexpr std::size_t wire_bytes = 16;
    std::uint64_t first = 0, count = 0;
    friend bool operator==(const BulkSpared &, const BulkSpared &) = default;
};
/// In one message.
inline constexpr std::size_t max_bulk_haves = 65536, max_bulk_spared = 65536;
/// In front of each block. No bytes: the end of the stream.
struct BulkBlock {
    static constexpr std::size_t wire_bytes = 24;
    std::uint64_t offset = 0;
    std::uint32_t bytes = 0, number = 0;  ///< number: counts the headers of a stream from 0
    std::uint64_t xxh3 = 0;  ///< XXH3-64 of the bytes, seed 0; 0 where there are none, or `unsummed`
};
/// The receiving side's last word, on stream 0.
struct BulkReceipt {
    static constexpr std::size_t wire_bytes = 8;
    Code code = Code::ok;
    std::uint32_t text_bytes = 0;
};

using GreetingBytes = std::array<std::uint8_t, BulkGreeting::wire_bytes>;
using AnswerBytes = std::array<std::uint8_t, BulkAnswer::wire_bytes>;
using BlockBytes = std::array<std::uint8_t, BulkBlock::wire_bytes>;
using ReceiptBytes = std::array<std::uint8_t, BulkReceipt::wire_bytes>;

GreetingBytes encode(const BulkGreeting &greeting);
AnswerBytes encode(const BulkAnswer &answer);
std::vector<std::uint8_t> encode(std::span<const BulkHave> haves);
std::vector<std::uint8_t> encode(std::span<const BulkSpared> spared);
BlockBytes encode(const BulkBlock &block);
ReceiptBytes encode(const BulkReceipt &receipt);

/// corrupt: not of this protocol, or numbers that can not be. unsupported: of another version.
Result<BulkGreeting> decode_greeting(std::span<const std::uint8_t, BulkGreeting::wire_bytes> bytes);
Result<BulkAnswer> decode_answer(std::span<const std::uint8_t, BulkAnswer::wire_bytes> bytes);
/// Precondition: a whole number of them.
std::vector<BulkHave> decode_haves(std::span<const std::uint8_t> bytes);
/// corrupt: not in order, one twice, or none of `blocks`. Precondition: as above.
Result<std::vector<BulkSpared>> decode_spared(std::span<const std::uint8_t> bytes, std::uint64_t blocks);
BulkBlock decode_block(std::span<const std::uint8_t, BulkBlock::wire_bytes> bytes);
Result<BulkReceipt> decode_receipt(std::span<const std::uint8_t, BulkReceipt::wire_bytes> bytes);

constexpr std::uint64_t bulk_blocks(std::uint64_t bytes) noexcept {
    return bytes / bulk_block_bytes + (bytes % bulk_block_bytes != 0);
}

/// The block is the next one of its stream, and one of those that `total` bytes are cut into.
Status check_block(const BulkBlock &block, std::uint32_t number, std::uint64_t total);

/// XXH3-64, seed 0: what a block's header says of its bytes. Any implementation; libxxhash's:
using BulkHash = std::uint64_t (*)(const void *data, std::size_t bytes);
std::uint64_t bulk_hash(const void *data, std::size_t bytes);

/// Random; init_crypto() was called.
BulkNonce make_bulk_nonce();

/// What proves the messages of one connection to come from who has the transfer's key. Not copied: it is the
/// key.
class BulkSession {
  public:
    BulkSession(const Key &transfer, const GreetingBytes &greeting, const AnswerBytes &answer);
    /// Of a message: `label` names its kind, so that none passes for another.
    BulkMac mac(std::string_view label, std::span<const std::uint8_t> message,
                std::span<const std::uint8_t> more = {}) const;
    Status check(std::string_view label, std::span<const std::uint8_t> message,
                 std::span<const std::uint8_t, mac_bytes> claimed,
                 std::span<const std::uint8_t> more = {}) const;

  private:
    Key key_;
};

namespace bulk_label {
inline constexpr std::string_view answer = "answer", proof = "proof", have = "have", spared = "spared",
                                  place = "place", block = "block", receipt = "receipt";
}  // namespace bulk_label

}  // namespace dlrover::transport
