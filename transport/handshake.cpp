// SPDX-License-Identifier: Apache-2.0
#include "transport/handshake.h"

#include <sodium.h>

#include <algorithm>

namespace dlrover::transport {
namespace {

constexpr std::size_t max_credential_bytes = 8192;

proto::Bytes random_bytes(std::size_t n) {
    proto::Bytes bytes(n);
    randombytes_buf(bytes.data(), n);
    return bytes;
}

bool same(const proto::Bytes &a, const proto::Bytes &b) {
    return a.size() == b.size() && sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

bool same_binding(const link::SealedT &a, const link::SealedT &b) {
    return a.side == b.side && a.protocol == b.protocol && a.cluster == b.cluster &&
           a.connecting == b.connecting && a.accepting == b.accepting &&
           same(a.connecting_nonce, b.connecting_nonce) && same(a.accepting_nonce, b.accepting_nonce) &&
           same(a.transcript, b.transcript);
}

}  // namespace

bool good_name(std::string_view name) {
    auto good = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
               c == '-' || c == '_';
    };
    return !name.empty() && name.size() <= 255 && std::all_of(name.begin(), name.end(), good);
}

proto::Bytes refusal(link::Reason reason, const std::string &text) {
    link::RefusedT refused;
    refused.reason = reason;
    refused.text = text;
    return encode_body(std::move(refused));
}

Handshake::Handshake(LinkIdentity self, std::string wanted)
    : self_(std::move(self)),
      connecting_(true),
      wait_(Wait::start),
      peer_(std::move(wanted)),
      own_nonce_(random_bytes(nonce_bytes)),
      own_secret_(random_bytes(secret_bytes)) {}

Handshake::Handshake(LinkIdentity self)
    : self_(std::move(self)),
      connecting_(false),
      wait_(Wait::offer),
      own_nonce_(random_bytes(nonce_bytes)),
      own_secret_(random_bytes(secret_bytes)) {}

Handshake::~Handshake() {
    sodium_memzero(own_secret_.data(), own_secret_.size());
    sodium_memzero(peer_secret_.data(), peer_secret_.size());
}

Status Handshake::fail(link::Reason reason, Code code, std::string text) {
    wait_ = Wait::over;
    reason_ = reason;
    return Status(code, std::move(text));
}

HandshakeStep Handshake::start() {
    link::OfferT offer;
    offer.protocol_min = self_.protocol_min;
    offer.protocol_max = self_.protocol_max;
    offer.cluster = self_.cluster;
    offer.node = self_.node;
    offer.wanted = peer_;
    offer.nonce = own_nonce_;
    offer_ = encode_body(std::move(offer));
    wait_ = Wait::challenge;
    HandshakeStep step;
    step.send.push_back(offer_);
    return step;
}

Result<HandshakeStep> Handshake::on_frame(std::span<const std::uint8_t> payload) {
    auto frame = decode_frame(payload);
    if (!frame) return fail(link::Reason::BadMessage, Code::corrupt, frame.status().message());
    if (auto *refused = frame->body.AsRefused())
        return fail(refused->reason, Code::unavailable, "the peer refuses: " + refused->text.substr(0, 256));
    if (auto *offer = frame->body.AsOffer(); offer && wait_ == Wait::offer)
        return on_offer(std::move(*offer), payload);
    if (auto *challenge = frame->body.AsChallenge(); challenge && wait_ == Wait::challenge)
        return on_challenge(std::move(*challenge), payload);
    if (auto *proof = frame->body.AsProof(); proof && wait_ == Wait::proof)
        return on_proof(std::move(*proof));
    return fail(link::Reason::BadMessage, Code::corrupt, "a frame that is not due in the handshake");
}

Result<HandshakeStep> Handshake::on_offer(link::OfferT offer, std::span<const std::uint8_t> bytes) {
    std::uint16_t highest = std::min(offer.protocol_max, self_.protocol_max);
    std::uint16_t lowest = std::max(offer.protocol_min, self_.protocol_min);
    if (highest < lowest)
        return fail(link::Reason::WrongProtocol, Code::unsupported,
                    "no common version of the protocol: the peer speaks " +
                        std::to_string(offer.protocol_min) + " to " + std::to_string(offer.protocol_max) +
                        ", this daemon " + std::to_string(self_.protocol_min) + " to " +
                        std::to_string(self_.protocol_max));
    if (offer.cluster != self_.cluster)
        return fail(link::Reason::WrongCluster, Code::permission_denied,
                    "the peer belongs to another cluster than " + self_.cluster);
    if (offer.wanted != self_.node || offer.node == self_.node)
        return fail(link::Reason::WrongName, Code::permission_denied, "this node is " + self_.node);
    if (!good_name(offer.node) || offer.nonce.size() != nonce_bytes)
        return fail(link::Reason::BadMessage, Code::corrupt, "an offer with a wrong name or nonce");
    protocol_ = highest;
    peer_ = offer.node;
    peer_nonce_ = std::move(offer.nonce);
    offer_.assign(bytes.begin(), bytes.end());
    wait_ = Wait::authorization;
    HandshakeStep step;
    step.authorize = peer_;
    return step;
}

Result<HandshakeStep> Handshake::on_authorized() {
    if (wait_ != Wait::authorization)
        return fail(link::Reason::Unknown, Code::internal, "on_authorized() is not due");
    link::ChallengeT challenge;
    challenge.protocol = protocol_;
    challenge.node = self_.node;
    challenge.nonce = own_nonce_;
    HandshakeStep step;
    step.send.push_back(encode_body(std::move(challenge)));
    end_transcript(step.send.back());
    wait_ = Wait::proof;
    return step;
}

Result<HandshakeStep> Handshake::on_challenge(link::ChallengeT challenge,
                                              std::span<const std::uint8_t> bytes) {
    if (challenge.protocol < self_.protocol_min || challenge.protocol > self_.protocol_max)
        return fail(link::Reason::WrongProtocol, Code::unsupported,
                    "the peer chose a version that was not offered");
    if (challenge.node != peer_)
        return fail(link::Reason::WrongName, Code::permission_denied, "another node answers for " + peer_);
    if (challenge.nonce.size() != nonce_bytes)
        return fail(link::Reason::BadMessage, Code::corrupt, "a challenge with a wrong nonce");
    protocol_ = challenge.protocol;
    peer_nonce_ = std::move(challenge.nonce);
    end_transcript(bytes);
    return ask_for_credential();
}

void Handshake::end_transcript(std::span<const std::uint8_t> challenge) {
    transcript_.resize(key_bytes);
    crypto_generichash_state state;
    crypto_generichash_init(&state, nullptr, 0, transcript_.size());
    crypto_generichash_update(&state, offer_.data(), offer_.size());
    crypto_generichash_update(&state, challenge.data(), challenge.size());
    crypto_generichash_final(&state, transcript_.data(), transcript_.size());
}

link::SealedT Handshake::expected(link::Side side) const {
    link::SealedT sealed;
    sealed.side = side;
    sealed.protocol = protocol_;
    sealed.cluster = self_.cluster;
    sealed.connecting = connecting_ ? self_.node : peer_;
    sealed.accepting = connecting_ ? peer_ : self_.node;
    sealed.connecting_nonce = connecting_ ? own_nonce_ : peer_nonce_;
    sealed.accepting_nonce = connecting_ ? peer_nonce_ : own_nonce_;
    sealed.transcript = transcript_;
    return sealed;
}

HandshakeStep Handshake::ask_for_credential() {
    link::SealedT sealed = expected(connecting_ ? link::Side::Connecting : link::Side::Accepting);
    sealed.instance = self_.instance;
    sealed.secret = own_secret_;
    wait_ = Wait::encoding;
    HandshakeStep step;
    step.to_encode = encode_sealed(sealed);
    sodium_memzero(sealed.secret.data(), sealed.secret.size());
    return step;
}

Result<HandshakeStep> Handshake::on_encoded(std::string credential) {
    if (wait_ != Wait::encoding)
        return fail(link::Reason::Unknown, Code::internal, "on_encoded() is not due");
    link::ProofT proof;
    proof.credential = std::move(credential);
    HandshakeStep step;
    step.send.push_back(encode_body(std::move(proof)));
    // The accepting side speaks last: it has checked the peer before it shows anything.
    step.done = !connecting_;
    wait_ = connecting_ ? Wait::proof : Wait::over;
    return step;
}

Result<HandshakeStep> Handshake::on_proof(link::ProofT proof) {
    if (proof.credential.empty() || proof.credential.size() > max_credential_bytes ||
        proof.credential.find('\0') != std::string::npos)
        return fail(link::Reason::BadMessage, Code::corrupt, "a credential of a wrong size");
    wait_ = Wait::decoding;
    HandshakeStep step;
    step.to_decode = std::move(proof.credential);
    return step;
}

Result<HandshakeStep> Handshake::on_decoded(const Voucher &voucher) {
    if (wait_ != Wait::decoding)
        return fail(link::Reason::Unknown, Code::internal, "on_decoded() is not due");
    if (voucher.uid != self_.trusted_uid)
        return fail(link::Reason::NotPermitted, Code::permission_denied,
                    "the credential was made by uid " + std::to_string(voucher.uid) + ", not by uid " +
                        std::to_string(self_.trusted_uid));
    auto sealed = decode_sealed(voucher.payload);
    if (!sealed)
        return fail(link::Reason::NotPermitted, Code::permission_denied,
                    "the credential holds something else");
    if (!same_binding(*sealed, expected(connecting_ ? link::Side::Accepting : link::Side::Connecting)))
        return fail(link::Reason::NotPermitted, Code::permission_denied,
                    "the credential was made for another link");
    if (sealed->secret.size() != secret_bytes)
        return fail(link::Reason::NotPermitted, Code::permission_denied, "the credential holds no key");
    peer_instance_ = sealed->instance;
    peer_secret_ = std::move(sealed->secret);
    if (!connecting_) return ask_for_credential();
    wait_ = Wait::over;
    HandshakeStep step;
    step.done = true;
    return step;
}

ChannelKeys Handshake::keys() const {
    const auto &connecting_secret = connecting_ ? own_secret_ : peer_secret_;
    const auto &accepting_secret = connecting_ ? peer_secret_ : own_secret_;
    return derive_keys(connecting_secret, accepting_secret, transcript_, connecting_);
}

}  // namespace dlrover::transport
