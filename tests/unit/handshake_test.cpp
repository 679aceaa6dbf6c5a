// SPDX-License-Identifier: Apache-2.0
#include "transport/handshake.h"

#include <boost/test/unit_test.hpp>

#include "fake_credentials.h"

using namespace dlrover;
using namespace dlrover::transport;

namespace {

struct Ends {
    std::shared_ptr<test::FakeRealm> realm = std::make_shared<test::FakeRealm>();
    test::FakeCredentials credentials_a{realm, 0}, credentials_b{realm, 0};
    LinkIdentity id_a{.cluster = "lab", .node = "n1", .instance = 11};
    LinkIdentity id_b{.cluster = "lab", .node = "n2", .instance = 22};
    /// Changes what travels; the number of the frame counts from 0 in both directions together.
    std::function<void(int, proto::Bytes &)> tamper = [](int, proto::Bytes &) {};
    Status failure_a, failure_b;
    bool done_a = false, done_b = false;

    Status run() {
        init_crypto_once();
        Handshake a(id_a, "n2"), b(id_b);
        std::deque<std::pair<bool, proto::Bytes>> wire;
        take(true, a, a.start(), wire);
        for (int frame = 0; !wire.empty() && failure_a.ok() && failure_b.ok(); ++frame) {
            auto [from_a, payload] = std::move(wire.front());
            wire.pop_front();
            tamper(frame, payload);
            Handshake &to = from_a ? b : a;
            take(!from_a, to, to.on_frame(payload), wire);
        }
        if (done_a && done_b) check_keys(a, b);
        return failure_a.ok() ? std::move(failure_b) : std::move(failure_a);
    }

    void take(bool is_a, Handshake &h, Result<HandshakeStep> step,
              std::deque<std::pair<bool, proto::Bytes>> &wire) {
        while (true) {
            if (!step) {
                (is_a ? failure_a : failure_b) = step.take_status();
                return;
            }
            for (auto &payload : step->send) wire.emplace_back(is_a, std::move(payload));
            if (step->done) (is_a ? done_a : done_b) = true;
            auto next = answer(is_a ? credentials_a : credentials_b, h, *step);
            if (!next) return;
            step = std::move(*next);
        }
    }

    static std::optional<Result<HandshakeStep>> answer(Credentials &credentials, Handshake &h,
                                                       HandshakeStep &step) {
        if (step.authorize) return h.on_authorized();
        if (step.to_encode) {
            auto text = credentials.encode(*step.to_encode);
            return text ? h.on_encoded(*text) : Result<HandshakeStep>(text.take_status());
        }
        if (step.to_decode) {
            auto voucher = credentials.decode(*step.to_decode);
            return voucher ? h.on_decoded(*voucher) : Result<HandshakeStep>(voucher.take_status());
        }
        return std::nullopt;
    }

    static void check_keys(Handshake &a, Handshake &b) {
        SecureChannel one(a.keys()), two(b.keys());
        proto::Bytes body{1, 2, 3};
        auto there = one.seal(body);
        BOOST_TEST(two.open(there).ok());
        auto back = two.seal(body);
        BOOST_TEST(one.open(back).ok());
        BOOST_TEST(!two.open(back).ok());
        BOOST_TEST(a.peer_instance() == 22u);
        BOOST_TEST(b.peer_instance() == 11u);
    }

    static void init_crypto_once() { BOOST_TEST_REQUIRE(init_crypto().ok()); }
};

/// Rewrites the flat table in a frame.
template <typename Change>
void rewrite(proto::Bytes &payload, Change change) {
    auto frame = decode_frame(payload);
    BOOST_TEST_REQUIRE(frame.ok());
    change(*frame);
    payload = encode_frame(*frame);
}

SecureChannel channel(bool connecting) {
    BOOST_TEST_REQUIRE(init_crypto().ok());
    proto::Bytes one(secret_bytes, 1), two(secret_bytes, 2), transcript(32, 3);
    return SecureChannel(derive_keys(one, two, transcript, connecting));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(handshake)

BOOST_AUTO_TEST_CASE(two_daemons_agree_on_keys) {
    Ends ends;
    BOOST_TEST(ends.run().ok());
    BOOST_TEST(ends.done_a);
    BOOST_TEST(ends.done_b);
}

BOOST_AUTO_TEST_CASE(a_credential_of_a_user_is_refused_by_either_side) {
    for (bool user_is_a : {true, false}) {
        Ends ends;
        test::FakeCredentials user(ends.realm, 1000);
        ends.tamper = [&](int frame, proto::Bytes &payload) {
            if (frame != (user_is_a ? 2 : 3)) return;
            rewrite(payload, [&](link::FrameT &f) {
                auto opened = ends.realm->made.at(f.body.AsProof()->credential);
                f.body.AsProof()->credential = *user.encode(opened.payload);
            });
        };
        BOOST_TEST(ends.run().message().find("made by uid 1000") != std::string::npos);
        BOOST_TEST(!(ends.done_a && ends.done_b));
    }
}

BOOST_AUTO_TEST_CASE(a_credential_of_an_earlier_link_is_refused) {
    Ends first;
    BOOST_TEST(first.run().ok());
    Ends second;
    second.realm->made = first.realm->made;
    second.realm->next = first.realm->next;
    second.tamper = [&](int frame, proto::Bytes &payload) {
        if (frame == 2)
            rewrite(payload,
                    [&](link::FrameT &f) { f.body.AsProof()->credential = first.credentials_a.last; });
    };
    BOOST_TEST(second.run().message() == "the credential was made for another link");
}

BOOST_AUTO_TEST_CASE(a_credential_can_not_be_reflected) {
    Ends ends;
    ends.credentials_a.accept_replays = true;
    std::string own;
    ends.tamper = [&](int frame, proto::Bytes &payload) {
        if (frame == 2) rewrite(payload, [&](link::FrameT &f) { own = f.body.AsProof()->credential; });
        if (frame == 3) rewrite(payload, [&](link::FrameT &f) { f.body.AsProof()->credential = own; });
    };
    BOOST_TEST(ends.run().message() == "the credential was made for another link");
    BOOST_TEST(!ends.done_a);
}

BOOST_AUTO_TEST_CASE(every_field_that_travels_in_clear_is_bound) {
    using Change = std::function<void(link::FrameT &)>;
    const std::pair<int, Change> changes[] = {
        {0, [](link::FrameT &f) { f.body.AsOffer()->nonce[5] ^= 1; }},
        {0, [](link::FrameT &f) { f.body.AsOffer()->node = "n3"; }},
        {0, [](link::FrameT &f) { f.body.AsOffer()->protocol_max = 2; }},
        {1, [](link::FrameT &f) { f.body.AsChallenge()->nonce[5] ^= 1; }},
    };
    for (const auto &[at, change] : changes) {
        Ends ends;
        ends.tamper = [at = at, change = change](int frame, proto::Bytes &payload) {
            if (frame == at) rewrite(payload, change);
        };
        BOOST_TEST(ends.run().message() == "the credential was made for another link");
        BOOST_TEST(!ends.done_a);
        BOOST_TEST(!ends.done_b);
    }
}

BOOST_AUTO_TEST_CASE(wrong_names_clusters_and_versions_are_told) {
    Ends cluster;
    cluster.id_b.cluster = "other";
    BOOST_TEST(cluster.run().message() == "the peer belongs to another cluster than other");
    Ends name;
    name.id_b.node = "n3";
    BOOST_TEST(name.run().message() == "this node is n3");
    Ends version;
    version.id_a.protocol_min = version.id_a.protocol_max = 7;
    auto status = version.run();
    BOOST_TEST((status.code() == Code::unsupported));
    BOOST_TEST(status.message().find("7 to 7") != std::string::npos);
}

/// A daemon of the next version talks to one of this version in this version's protocol.
BOOST_AUTO_TEST_CASE(the_highest_common_version_is_chosen) {
    Ends ends;
    ends.id_a.protocol_max = 2;
    BOOST_TEST(ends.run().ok());
    Ends newer;
    newer.id_a.protocol_max = newer.id_b.protocol_max = 2;
    newer.tamper = [](int frame, proto::Bytes &payload) {
        if (frame != 1) return;
        auto decoded = decode_frame(payload);
        BOOST_TEST(decoded->body.AsChallenge()->protocol == 2);
    };
    BOOST_TEST(newer.run().ok());
}

BOOST_AUTO_TEST_CASE(frames_out_of_turn_end_the_handshake) {
    Ends::init_crypto_once();
    Ends ends;
    Handshake b(ends.id_b);
    BOOST_TEST(!b.on_frame(encode_body(link::ProofT())).ok());
    Handshake c(ends.id_b);
    BOOST_TEST(!c.on_frame(encode_body(link::EnvelopeT())).ok());
    Handshake d(ends.id_b);
    BOOST_TEST(!d.on_frame(proto::Bytes(64, 0xff)).ok());
    BOOST_TEST(!d.on_authorized().ok());
    Handshake e(ends.id_a, "n2");
    auto first = e.start();
    BOOST_TEST(!e.on_frame(first.send[0]).ok());
}

BOOST_AUTO_TEST_CASE(a_sealed_frame_is_opened_once_in_order_and_unaltered) {
    auto one = channel(true), two = channel(false);
    proto::Bytes body(1000, 7);
    auto first = one.seal(body), second = one.seal(body);
    for (std::size_t at = 0; at < first.size(); at += 7) {
        auto altered = first;
        altered[at] ^= 0x20;
        BOOST_TEST(!two.open(altered).ok());
    }
    BOOST_TEST(two.open(second).status().message().find("out of order") != std::string::npos);
    BOOST_TEST(two.open(first).ok());
    BOOST_TEST(!two.open(first).ok());
    BOOST_TEST(two.open(second).ok());
    BOOST_TEST(!two.open(std::span<const std::uint8_t>(first).first(sealed_overhead - 1)).ok());
}

BOOST_AUTO_TEST_CASE(names) {
    for (const char *name : {"n1", "gpu-01.lab", "a_b"}) BOOST_TEST(good_name(name));
    for (const char *name : {"", "a b", "a\n", "../x", "\xc3\xbc"}) BOOST_TEST(!good_name(name));
    BOOST_TEST(!good_name(std::string(256, 'a')));
}

BOOST_AUTO_TEST_SUITE_END()
