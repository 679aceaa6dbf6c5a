// SPDX-License-Identifier: Apache-2.0
// A stranger's bytes in the handshake of a peer link, either side. The first byte chooses the side; the rest
// is a stream of frames. Credentials open to what they hold, made by root: the worst case.
#include <algorithm>

#include "fuzz.h"
#include "transport/handshake.h"

namespace dlrover::fuzz {
namespace {

using namespace transport;

constexpr std::uint8_t connecting_side = 1;

/// Does what a step asks for, until it asks for nothing. False: the handshake failed.
bool follow(Handshake &handshake, Result<HandshakeStep> step, bool &done) {
    for (;;) {
        if (!step) return false;
        done = step->done;
        if (step->authorize) {
            require(good_name(*step->authorize), "only proper names are asked for");
            step = handshake.on_authorized();
        } else if (step->to_encode) {
            step = handshake.on_encoded(std::string(step->to_encode->begin(), step->to_encode->end()));
        } else if (step->to_decode) {
            step = handshake.on_decoded({Bytes(step->to_decode->begin(), step->to_decode->end()), 0, 0});
        } else {
            return true;
        }
    }
}

bool handle_established(std::span<const std::uint8_t> body) {
    auto frame = decode_frame(body);
    if (!frame) return false;
    if (auto *envelope = frame->body.AsEnvelope()) {
        auto taken = from_table(std::move(*envelope));
        return taken && decode_frame(encode_body(to_table(std::move(*taken)))).ok();
    }
    return true;
}

void append(Bytes &stream, const proto::Bytes &payload) {
    auto frame = proto::make_frame(payload);
    stream.insert(stream.end(), frame.begin(), frame.end());
}

LinkIdentity self() {
    return {.cluster = "lab", .node = "n1", .instance = 1};
}

}  // namespace

bool run(std::span<const std::uint8_t> input) {
    require(init_crypto().ok(), "libsodium works");
    if (input.empty()) return false;
    bool connecting = input[0] == connecting_side, done = false, accepted = false;
    Handshake handshake = connecting ? Handshake(self(), "n2") : Handshake(self());
    if (connecting) handshake.start();
    proto::FrameReader reader;
    if (!reader.feed(input.subspan(1)).ok()) return false;
    while (auto payload = reader.next()) {
        accepted = handle_established(*payload) || accepted;
        (void)decode_sealed(*payload);
        if (!follow(handshake, handshake.on_frame(*payload), done)) break;
    }
    // Own nonces are random: nobody can have signed them beforehand.
    require(!done, "no handshake succeeds without knowing the nonce");
    return accepted;
}

std::vector<Bytes> seeds() {
    link::OfferT offer;
    offer.cluster = "lab";
    offer.node = "n2";
    offer.wanted = "n1";
    offer.nonce.assign(nonce_bytes, 7);
    link::SealedT sealed;
    sealed.side = link::Side::Connecting;
    sealed.protocol = 1;
    sealed.cluster = "lab";
    sealed.connecting = "n2";
    sealed.accepting = "n1";
    sealed.connecting_nonce = offer.nonce;
    sealed.accepting_nonce.assign(nonce_bytes, 0);
    sealed.transcript.assign(key_bytes, 0);
    sealed.secret.assign(secret_bytes, 5);
    auto credential = encode_sealed(sealed);
    std::replace(credential.begin(), credential.end(), std::uint8_t{0}, std::uint8_t{1});
    link::ProofT proof;
    proof.credential.assign(credential.begin(), credential.end());
    link::ChallengeT challenge;
    challenge.protocol = 1;
    challenge.node = "n2";
    challenge.nonce.assign(nonce_bytes, 8);
    Bytes accepting{0}, connecting{connecting_side}, frames{0};
    append(accepting, encode_body(offer));
    append(accepting, encode_body(proof));
    append(connecting, encode_body(challenge));
    append(connecting, encode_body(proof));
    PeerEnvelope envelope;
    envelope.payload = {1, 2, 3};
    append(frames, encode_body(to_table(envelope)));
    append(frames, encode_body(link::ByeT()));
    append(frames, encode_body(link::WantT()));
    return {accepting, connecting, frames};
}

}  // namespace dlrover::fuzz
