// SPDX-License-Identifier: Apache-2.0
#include "transport/bulk_wire.h"

#include <sodium.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>

namespace dlrover::transport {
namespace {

constexpr std::array<std::uint8_t, 8> magic = {'D', 'L', 'R', 'B', 'U', 'L', 'K', '\0'};

/// Little-endian, one field after the other.
class Out {
  public:
    explicit Out(std::span<std::uint8_t> bytes) : rest_(bytes) {}
    template <typename Int>
    Out &number(Int value) {
        for (std::size_t i = 0; i < sizeof value; ++i)
            rest_[i] = static_cast<std::uint8_t>(std::uint64_t{value} >> (8 * i));
        rest_ = rest_.subspan(sizeof value);
        return *this;
    }
    Out &bytes(std::span<const std::uint8_t> from) {
        std::copy(from.begin(), from.end(), rest_.begin());
        rest_ = rest_.subspan(from.size());
        return *this;
    }

  private:
    std::span<std::uint8_t> rest_;
};

class In {
  public:
    explicit In(std::span<const std::uint8_t> bytes) : rest_(bytes) {}
    template <typename Int>
    void number(Int &out) {
        std::uint64_t value = 0;
        for (std::size_t i = 0; i < sizeof out; ++i) value |= std::uint64_t{rest_[i]} << (8 * i);
        out = static_cast<Int>(value);
        rest_ = rest_.subspan(sizeof out);
    }
    void bytes(std::span<std::uint8_t> out) {
        std::copy_n(rest_.begin(), out.size(), out.begin());
        rest_ = rest_.subspan(out.size());
    }
    std::span<const std::uint8_t> rest() const { return rest_; }

  private:
    std::span<const std::uint8_t> rest_;
};

Status check_start(In &in) {
    std::array<std::uint8_t, magic.size()> found;
    std::uint16_t version = 0;
    in.bytes(found);
    in.number(version);
    if (found != magic) return Status(Code::corrupt, "not a mover's greeting");
    if (version != bulk_protocol)
        return Status(Code::unsupported, "the other mover speaks version " + std::to_string(version) +
                                             " of the protocol, this one " + std::to_string(bulk_protocol));
    return {};
}

}  // namespace

GreetingBytes encode(const BulkGreeting &greeting) {
    GreetingBytes bytes{};
    Out(bytes)
        .bytes(magic)
        .number(bulk_protocol)
        .number(greeting.methods)
        .number(greeting.stream)
        .number(greeting.streams)
        .number(greeting.transfer)
        .number(greeting.bytes)
        .bytes(greeting.nonce);
    return bytes;
}

Result<BulkGreeting> decode_greeting(std::span<const std::uint8_t, BulkGreeting::wire_bytes> bytes) {
    In in(bytes);
    DLROVER_TRY(check_start(in));
    BulkGreeting greeting;
    in.number(greeting.methods);
    in.number(greeting.stream);
    in.number(greeting.streams);
    in.number(greeting.transfer);
    in.number(greeting.bytes);
    in.bytes(greeting.nonce);
    BulkMethods ways = greeting.methods & static_cast<BulkMethods>(~(bulk_spares | bulk_unsummed));
    if (greeting.streams == 0 || greeting.streams > max_bulk_streams || greeting.stream >= greeting.streams ||
        ways == 0 || greeting.bytes == 0)
        return Status(Code::corrupt, "a mover's greeting with numbers that can not be");
    return greeting;
}

AnswerBytes encode(const BulkAnswer &answer) {
    AnswerBytes bytes{};
    Out(bytes)
        .bytes(magic)
        .number(bulk_protocol)
        .number(static_cast<std::uint16_t>(static_cast<BulkMethods>(answer.method) |
                                           (answer.spares ? bulk_spares : 0) |
                                           (answer.unsummed ? bulk_unsummed : 0)))
        .number(std::uint32_t{0})
        .bytes(answer.nonce);
    return bytes;
}

Result<BulkAnswer> decode_answer(std::span<const std::uint8_t, BulkAnswer::wire_bytes> bytes) {
    In in(bytes);
    DLROVER_TRY(check_start(in));
    BulkAnswer answer;
    std::uint16_t method = 0;
    std::uint32_t zero = 0;
    in.number(method);
    in.number(zero);
    in.bytes(answer.nonce);
    answer.spares = (method & bulk_spares) != 0;
    answer.unsummed = (method & bulk_unsummed) != 0;
    answer.method = static_cast<BulkMethod>(method & ~(bulk_spares | bulk_unsummed));
    if ((answer.method != BulkMethod::tcp && answer.method != BulkMethod::ucx) || zero != 0)
        return Status(Code::corrupt, "a mover's answer with numbers that can not be");
    return answer;
}

std::vector<std::uint8_t> encode(std::span<const BulkHave> haves) {
    std::vector<std::uint8_t> bytes(haves.size() * BulkHave::wire_bytes);
    Out out(bytes);
    for (const BulkHave &have : haves) out.number(have.piece).number(have.bytes).number(have.checksum);
    return bytes;
}

std::vector<BulkHave> decode_haves(std::span<const std::uint8_t> bytes) {
    std::vector<BulkHave> haves(bytes.size() / BulkHave::wire_bytes);
    In in(bytes);
    for (BulkHave &have : haves) {
        in.number(have.piece);
        in.number(have.bytes);
        in.number(have.checksum);
    }
    return haves;
}

std::vector<std::uint8_t> encode(std::span<const BulkSpared> spared) {
    std::vector<std::uint8_t> bytes(spared.size() * BulkSpared::wire_bytes);
    Out out(bytes);
    for (const BulkSpared &run : spared) out.number(run.first).number(run.count);
    return bytes;
}

Result<std::vector<BulkSpared>> decode_spared(std::span<const std::uint8_t> bytes, std::uint64_t blocks) {
    std::vector<BulkSpared> spared(bytes.size() / BulkSpared::wire_bytes);
    In in(bytes);
    std::uint64_t next = 0;
    for (BulkSpared &run : spared) {
        in.number(run.first);
        in.number(run.count);
        if (run.count == 0 || run.first < next || run.first >= blocks || run.count > blocks - run.first)
            return Status(Code::corrupt, "blocks are left out that are none of this transfer's");
        next = run.first + run.count;
    }
    return spared;
}

BlockBytes encode(const BulkBlock &block) {
    BlockBytes bytes{};
    Out(bytes).number(block.offset).number(block.bytes).number(block.number).number(block.xxh3);
    return bytes;
}

BulkBlock decode_block(std::span<const std::uint8_t, BulkBlock::wire_bytes> bytes) {
    In in(bytes);
    BulkBlock block;
    in.number(block.offset);
    in.number(block.bytes);
    in.number(block.number);
    in.number(block.xxh3);
    return block;
}

Status check_block(const BulkBlock &block, std::uint32_t number, std::uint64_t total) {
    if (block.number != number) return Status(Code::corrupt, "a block out of order");
    if (block.bytes == 0) return {};
    if (block.offset >= total || block.offset % bulk_block_bytes != 0 ||
        block.bytes != std::min(bulk_block_bytes, total - block.offset))
        return Status(Code::corrupt, "a block that is none of this transfer's");
    return {};
}

ReceiptBytes encode(const BulkReceipt &receipt) {
    ReceiptBytes bytes{};
    Out(bytes).number(static_cast<std::uint32_t>(receipt.code)).number(receipt.text_bytes);
    return bytes;
}

Result<BulkReceipt> decode_receipt(std::span<const std::uint8_t, BulkReceipt::wire_bytes> bytes) {
    In in(bytes);
    BulkReceipt receipt;
    std::uint32_t code = 0;
    in.number(code);
    in.number(receipt.text_bytes);
    if (code > static_cast<std::uint32_t>(Code::internal) || receipt.text_bytes > max_bulk_text_bytes)
        return Status(Code::corrupt, "a receipt with numbers that can not be");
    receipt.code = static_cast<Code>(code);
    return receipt;
}

std::uint64_t bulk_hash(const void *data, std::size_t bytes) {
    return XXH3_64bits(data, bytes);
}

BulkNonce make_bulk_nonce() {
    BulkNonce nonce;
    randombytes_buf(nonce.data(), nonce.size());
    return nonce;
}

BulkSession::BulkSession(const Key &transfer, const GreetingBytes &greeting, const AnswerBytes &answer) {
    crypto_generichash_state state;
    std::array<std::uint8_t, key_bytes> bytes;
    crypto_generichash_init(&state, transfer.bytes().data(), key_bytes, bytes.size());
    crypto_generichash_update(&state, greeting.data(), greeting.size());
    crypto_generichash_update(&state, answer.data(), answer.size());
    crypto_generichash_final(&state, bytes.data(), bytes.size());
    key_ = Key(bytes);
    sodium_memzero(bytes.data(), bytes.size());
}

BulkMac BulkSession::mac(std::string_view label, std::span<const std::uint8_t> message,
                         std::span<const std::uint8_t> more) const {
    crypto_generichash_state state;
    BulkMac mac;
    auto label_bytes = static_cast<std::uint8_t>(label.size());
    crypto_generichash_init(&state, key_.bytes().data(), key_bytes, mac.size());
    crypto_generichash_update(&state, &label_bytes, 1);
    crypto_generichash_update(&state, reinterpret_cast<const unsigned char *>(label.data()), label.size());
    for (auto part : {message, more}) crypto_generichash_update(&state, part.data(), part.size());
    crypto_generichash_final(&state, mac.data(), mac.size());
    return mac;
}

Status BulkSession::check(std::string_view label, std::span<const std::uint8_t> message,
                          std::span<const std::uint8_t, mac_bytes> claimed,
                          std::span<const std::uint8_t> more) const {
    BulkMac right = mac(label, message, more);
    if (sodium_memcmp(right.data(), claimed.data(), mac_bytes) == 0) return {};
    return Status(Code::permission_denied,
                  "the other side does not have the key of this transfer (" + std::string(label) + ")");
}

}  // namespace dlrover::transport
