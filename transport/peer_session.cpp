// SPDX-License-Identifier: Apache-2.0
#include "transport/peer_session.h"

namespace dlrover::transport {
namespace {

/// Offer, challenge and proof together are far below this.
constexpr std::uint64_t max_handshake_bytes = 64u << 10;

link::Reason reason_of(Code code) {
    if (code == Code::already_exists) return link::Reason::Duplicate;
    return code == Code::permission_denied ? link::Reason::NotPermitted : link::Reason::Busy;
}

}  // namespace

PeerSession::PeerSession(EventLoop &loop, SessionLimits limits, SocketAddress remote, Callbacks callbacks)
    : loop_(loop), limits_(limits), remote_(remote), callbacks_(std::move(callbacks)) {}

void PeerSession::start(UniqueFd socket, LinkIdentity self, std::optional<std::string> wanted, bool we_want) {
    initiated_ = wanted.has_value();
    we_want_ = we_want;
    if (auto own = local_address(socket.get())) own_address_ = own->host();
    if (initiated_)
        handshake_.emplace(std::move(self), *wanted);
    else
        handshake_.emplace(std::move(self));
    connection_.emplace(
        loop_, std::move(socket), limits_.connection,
        Connection::Callbacks{[this](proto::Bytes payload) { on_payload(std::move(payload)); },
                              [this](Status why) { fail(std::move(why)); }});
    timer_ = loop_.after(limits_.handshake_timeout,
                         [this] { fail(Status(Code::timeout, "the handshake took too long")); });
    if (initiated_) apply(handshake_->start());
}

void PeerSession::fail(Status why) {
    if (over_) return;
    over_ = true;
    up_ = false;
    timer_.reset();
    connection_->end();
    auto self = shared_from_this();
    callbacks_.on_end(*self, std::move(why));
}

void PeerSession::close(link::Reason reason, const std::string &text) {
    if (over_) return;
    if (channel_) {
        link::ByeT bye;
        bye.reason = reason;
        bye.text = text;
        send_sealed(encode_body(std::move(bye)));
    } else {
        connection_->send(refusal(reason, text));
    }
    over_ = true;
    up_ = false;
    timer_.reset();
    connection_->end();
}

void PeerSession::on_payload(proto::Bytes payload) {
    if (over_) return;
    if (channel_) return on_sealed(payload);
    if (connection_->bytes_received() > max_handshake_bytes)
        return fail(Status(Code::corrupt, "more bytes than a handshake has"));
    apply(handshake_->on_frame(payload));
}

/// Passes an answer on if the session is still there and not over; the connection was paused for it.
template <typename T, typename Use>
PeerSession::Answer<T> PeerSession::answer(Use use) {
    connection_->pause();
    return [weak = weak_from_this(), use](Result<T> result) {
        auto self = weak.lock();
        if (!self || self->over_) return;
        if (!result) {
            self->connection_->send(refusal(reason_of(result.status().code()), result.status().message()));
            return self->fail(result.take_status());
        }
        self->apply(use(*self, std::move(*result)));
        if (!self->over_) self->connection_->resume();
    };
}

void PeerSession::apply(Result<HandshakeStep> step) {
    if (!step) {
        // Nothing is told to a peer that has just refused us.
        if (step.status().code() != Code::unavailable)
            connection_->send(refusal(handshake_->refusal_reason(), step.status().message()));
        return fail(step.take_status());
    }
    for (auto &payload : step->send) connection_->send(std::move(payload));
    if (step->done) return establish();
    ask(*step);
}

void PeerSession::ask(HandshakeStep &step) {
    if (step.authorize) {
        auto refuse_or_go = answer<Verdict>([](PeerSession &self, Verdict verdict) {
            self.guest_ = verdict.guest;
            return self.handshake_->on_authorized();
        });
        callbacks_.authorize(*this, std::move(refuse_or_go));
    } else if (step.to_encode) {
        callbacks_.encode(std::move(*step.to_encode),
                          answer<std::string>([](PeerSession &self, std::string text) {
                              return self.handshake_->on_encoded(std::move(text));
                          }));
    } else if (step.to_decode) {
        callbacks_.decode(std::move(*step.to_decode),
                          answer<Voucher>([](PeerSession &self, const Voucher &voucher) {
                              return self.handshake_->on_decoded(voucher);
                          }));
    }
}

void PeerSession::establish() {
    channel_.emplace(handshake_->keys());
    link::ReadyT ready;
    ready.wanted = we_want_;
    ready.kinds = limits_.kinds;
    send_sealed(encode_body(std::move(ready)));
}

void PeerSession::send_sealed(const proto::Bytes &body) {
    connection_->send(channel_->seal(body));
}

void PeerSession::on_sealed(std::span<const std::uint8_t> payload) {
    auto body = channel_->open(payload);
    if (!body) return fail(body.take_status());
    auto frame = decode_frame(*body);
    if (!frame) return fail(frame.take_status());
    on_body(std::move(*frame));
}

void PeerSession::on_body(link::FrameT frame) {
    if (auto *bye = frame.body.AsBye())
        return fail(Status(Code::unavailable, "the peer closes the link: " + bye->text.substr(0, 256)));
    if (auto *ready = frame.body.AsReady(); ready && !up_) return on_ready(*ready);
    if (!up_) return fail(Status(Code::corrupt, "a frame before the link was ready"));
    if (frame.body.type == link::Body::Probe) return;
    if (auto *want = frame.body.AsWant()) {
        peer_wants_ = want->wanted;
        return callbacks_.on_want(*this);
    }
    if (auto *envelope = frame.body.AsEnvelope()) return on_envelope(std::move(*envelope));
    fail(Status(Code::corrupt, "a frame that is not due"));
}

void PeerSession::on_ready(const link::ReadyT &ready) {
    up_ = true;
    peer_wants_ = ready.wanted;
    peer_kinds_ = ready.kinds;
    timer_ = loop_.after(limits_.probe, [this] { tick(); });
    callbacks_.on_up(*this);
}

void PeerSession::on_envelope(link::EnvelopeT table) {
    auto envelope = from_table(std::move(table));
    if (!envelope) return fail(envelope.take_status());
    if (guest_ && envelope->kind != PeerEnvelope::Kind::request)
        return fail(Status(Code::permission_denied, "a host that is no node of Slurm may only ask"));
    callbacks_.on_message(*this, std::move(*envelope));
}

void PeerSession::tick() {
    auto now = loop_.now();
    if (now - connection_->last_received() >= limits_.dead_after)
        return fail(Status(Code::timeout, "the peer says nothing any more"));
    if (now - connection_->last_sent() >= limits_.probe) send_sealed(encode_body(link::ProbeT()));
    timer_ = loop_.after(limits_.probe, [this] { tick(); });
}

void PeerSession::send(PeerEnvelope envelope) {
    // All groups' messages share the link, heartbeats, too. Those of PMIx their servers send again.
    if (envelope.kind == PeerEnvelope::Kind::pmix && connection_ && connection_->is_busy()) return;
    if (up_ && takes(envelope.kind)) send_sealed(encode_body(to_table(std::move(envelope))));
}

void PeerSession::send_want(bool we_want) {
    we_want_ = we_want;
    link::WantT want;
    want.wanted = we_want;
    if (up_) send_sealed(encode_body(std::move(want)));
}

}  // namespace dlrover::transport
