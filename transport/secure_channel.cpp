// SPDX-License-Identifier: Apache-2.0
#include "transport/secure_channel.h"

#include <sodium.h>

#include <algorithm>
#include <string_view>

namespace dlrover::transport {
namespace {

using Mac = std::array<std::uint8_t, mac_bytes>;

void put_u64(std::uint8_t *at, std::uint64_t value) {
    for (unsigned i = 0; i < 8; ++i) at[i] = static_cast<std::uint8_t>(value >> (8 * i));
}

std::uint64_t get_u64(const std::uint8_t *at) {
    std::uint64_t value = 0;
    for (unsigned i = 0; i < 8; ++i) value |= std::uint64_t{at[i]} << (8 * i);
    return value;
}

Mac mac_of(const Key &key, std::span<const std::uint8_t, 8> sequence, std::span<const std::uint8_t> body) {
    crypto_generichash_state state;
    Mac mac;
    crypto_generichash_init(&state, key.bytes().data(), key_bytes, mac.size());
    crypto_generichash_update(&state, sequence.data(), sequence.size());
    crypto_generichash_update(&state, body.data(), body.size());
    crypto_generichash_final(&state, mac.data(), mac.size());
    return mac;
}

Key direction_key(const Key &base, std::string_view direction) {
    std::array<std::uint8_t, key_bytes> bytes;
    crypto_generichash(bytes.data(), bytes.size(), reinterpret_cast<const unsigned char *>(direction.data()),
                       direction.size(), base.bytes().data(), key_bytes);
    Key key(bytes);
    sodium_memzero(bytes.data(), bytes.size());
    return key;
}

}  // namespace

Key::Key(std::span<const std::uint8_t, key_bytes> bytes) {
    std::copy(bytes.begin(), bytes.end(), bytes_.begin());
}

Key::~Key() {
    sodium_memzero(bytes_.data(), bytes_.size());
}

Status init_crypto() {
    if (sodium_init() < 0) return Status(Code::internal, "libsodium cannot be used");
    return {};
}

ChannelKeys derive_keys(std::span<const std::uint8_t> connecting_secret,
                        std::span<const std::uint8_t> accepting_secret,
                        std::span<const std::uint8_t> transcript, bool connecting) {
    crypto_generichash_state state;
    std::array<std::uint8_t, key_bytes> bytes;
    crypto_generichash_init(&state, nullptr, 0, bytes.size());
    for (auto part : {connecting_secret, accepting_secret, transcript})
        crypto_generichash_update(&state, part.data(), part.size());
    crypto_generichash_final(&state, bytes.data(), bytes.size());
    Key base(bytes);
    sodium_memzero(bytes.data(), bytes.size());
    Key forth = direction_key(base, "dlrover link connecting to accepting");
    Key back = direction_key(base, "dlrover link accepting to connecting");
    return connecting ? ChannelKeys{forth, back} : ChannelKeys{back, forth};
}

proto::Bytes SecureChannel::seal(std::span<const std::uint8_t> body) {
    proto::Bytes payload(sealed_overhead + body.size());
    put_u64(payload.data(), next_sent_++);
    Mac mac = mac_of(keys_.send, std::span<const std::uint8_t, 8>(payload.data(), 8), body);
    std::copy(mac.begin(), mac.end(), payload.begin() + 8);
    std::copy(body.begin(), body.end(), payload.begin() + sealed_overhead);
    return payload;
}

Result<std::span<const std::uint8_t>> SecureChannel::open(std::span<const std::uint8_t> payload) {
    if (payload.size() < sealed_overhead) return Status(Code::corrupt, "a frame without its MAC");
    auto body = payload.subspan(sealed_overhead);
    Mac mac = mac_of(keys_.receive, payload.first<8>(), body);
    if (sodium_memcmp(mac.data(), payload.data() + 8, mac_bytes) != 0)
        return Status(Code::corrupt, "a frame whose MAC is wrong");
    if (get_u64(payload.data()) != next_received_)
        return Status(Code::corrupt, "a frame out of order: number " +
                                         std::to_string(get_u64(payload.data())) + " where " +
                                         std::to_string(next_received_) + " was due");
    ++next_received_;
    return body;
}

}  // namespace dlrover::transport
