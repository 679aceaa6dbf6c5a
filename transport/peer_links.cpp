// SPDX-License-Identifier: Apache-2.0
#include "transport/peer_links.h"

#include <sodium.h>

#include <algorithm>
#include <map>
#include <set>

#include "common/log.h"
#include "transport/dialer.h"

namespace dlrover::transport {
namespace {

using Session = std::shared_ptr<PeerSession>;
constexpr std::size_t max_waiting_credentials = 4096, max_waiting_names = 4096;
constexpr std::uint16_t first_unprivileged_port = 1024;

std::uint64_t random_u64() {
    std::uint64_t value;
    randombytes_buf(&value, sizeof value);
    return value;
}

struct Peer {
    unsigned wanted = 0;
    std::string address;
    Session link;      ///< up
    Session outgoing;  ///< our own connection, in its handshake
    std::unique_ptr<Dialer> dialer;
    EventLoop::Handle retry;
    EventLoop::Time pause{0};  ///< before the next attempt; 0: the last one succeeded
    bool idle() const { return !link && !outgoing && !dialer && !retry; }
};

}  // namespace

struct PeerLinks::State {
    State(EventLoop &l, PeerLinksConfig c, std::shared_ptr<Credentials> who, LookUp look_up, UniqueFd socket);
    void watch_listener();
    void on_connections();
    void on_connection(UniqueFd socket, const SocketAddress &remote);
    PeerSession::Callbacks session_callbacks();
    void authorize(PeerSession &session, PeerSession::Answer<PeerSession::Verdict> answer);
    void encode(proto::Bytes payload, PeerSession::Answer<std::string> answer);
    void decode(std::string credential, PeerSession::Answer<Voucher> answer);

    void note_munge(const Status &status);

    void dial(const std::string &node, Peer &peer);
    void on_dialed(const std::string &node, Result<Dialed> dialed);
    void retry_later(const std::string &node, Peer &peer, const Status &why);
    void on_up(const Session &session);
    void on_end(const Session &session, const Status &why);
    void on_want(const Session &session);
    void lose(const std::string &node, Peer &peer, const std::string &why, bool later);
    void retire(Session session);
    void forget_if_unused(const std::string &node);
    void tell(const std::string &node, bool is_up);
    LinkIdentity identity() const;

    EventLoop &loop;
    PeerLinksConfig config;
    std::shared_ptr<Credentials> credentials;
    std::uint64_t instance = random_u64();
    UniqueFd listener;
    WorkerThread munge, resolver;
    AddressCheck addresses;
    Callbacks callbacks;
    std::map<std::string, Peer> peers;
    std::set<Session> incoming;  ///< in their handshake
    EventLoop::Handle accepting;
    bool munge_away = false;
    std::shared_ptr<bool> alive = std::make_shared<bool>(true);
};

PeerLinks::State::State(EventLoop &l, PeerLinksConfig c, std::shared_ptr<Credentials> who, LookUp look_up,
                        UniqueFd socket)
    : loop(l),
      config(std::move(c)),
      credentials(std::move(who)),
      listener(std::move(socket)),
      munge(l, max_waiting_credentials),
      resolver(l, max_waiting_names),
      addresses(l, resolver, config.addresses, std::move(look_up)) {
    watch_listener();
}

LinkIdentity PeerLinks::State::identity() const {
    return {.cluster = config.cluster,
            .node = config.node,
            .instance = instance,
            .trusted_uid = config.trusted_uid};
}

// ---- incoming -------------------------------------------------------------------------------------

void PeerLinks::State::watch_listener() {
    accepting = loop.when_readable(listener.get(), [this] { on_connections(); });
}

void PeerLinks::State::on_connections() {
    constexpr int at_once = 64;
    for (int i = 0; i < at_once; ++i) {
        SocketAddress remote;
        auto socket = accept_from(listener.get(), remote);
        if (!socket) {
            log::error("links: " + socket.status().message());
            // Out of descriptors, most likely: the connection waits in the backlog.
            accepting = loop.after(std::chrono::milliseconds(200), [this] { watch_listener(); });
            return;
        }
        if (!*socket) return;
        on_connection(std::move(*socket), remote);
    }
}

void PeerLinks::State::on_connection(UniqueFd socket, const SocketAddress &remote) {
    if (config.privileged_ports && remote.port() >= first_unprivileged_port)
        return log::warning("links: a connection from " + remote.host() +
                            " was closed: it does not come from a privileged port");
    auto of_host = std::count_if(incoming.begin(), incoming.end(),
                                 [&](const Session &s) { return s->remote().same_host(remote); });
    if (incoming.size() >= config.max_unfinished ||
        static_cast<std::size_t>(of_host) >= config.max_unfinished_of_host)
        return log::warning("links: a connection from " + remote.host() +
                            " was closed: too many are in their handshake");
    if (Status s =
            tune(socket.get(), std::chrono::ceil<std::chrono::milliseconds>(config.session.dead_after));
        !s.ok())
        return;
    auto session = std::make_shared<PeerSession>(loop, config.session, remote, session_callbacks());
    incoming.insert(session);
    session->start(std::move(socket), identity(), std::nullopt, false);
}

PeerSession::Callbacks PeerLinks::State::session_callbacks() {
    return {
        .authorize = [this](PeerSession &s, auto answer) { authorize(s, std::move(answer)); },
        .encode = [this](proto::Bytes payload,
                         auto answer) { encode(std::move(payload), std::move(answer)); },
        .decode = [this](std::string text, auto answer) { decode(std::move(text), std::move(answer)); },
        .on_up = [this](PeerSession &s) { on_up(s.shared_from_this()); },
        .on_message =
            [this](PeerSession &s, PeerEnvelope envelope) {
                if (callbacks.on_message) callbacks.on_message(s.peer(), std::move(envelope));
            },
        .on_want = [this](PeerSession &s) { on_want(s.shared_from_this()); },
        .on_end = [this](PeerSession &s, const Status &why) { on_end(s.shared_from_this(), why); },
    };
}

void PeerLinks::State::authorize(PeerSession &session, PeerSession::Answer<PeerSession::Verdict> answer) {
    auto it = peers.find(session.peer());
    bool connecting = it != peers.end() && it->second.outgoing;
    // Both connect at once: the smaller name's connection is used. Nothing depends on this hint.
    if (connecting && config.node < session.peer())
        return answer(Status(Code::already_exists, config.node + " is connecting itself"));
    addresses.check(session.peer(), session.remote(), std::move(answer));
}

void PeerLinks::State::encode(proto::Bytes payload, PeerSession::Answer<std::string> answer) {
    auto job = [this, who = credentials, payload = std::move(payload), answer]() -> WorkerThread::Completion {
        auto text = std::make_shared<Result<std::string>>(who->encode(payload));
        return [this, answer, text] {
            note_munge(text->status());
            answer(std::move(*text));
        };
    };
    if (!munge.submit(std::move(job)))
        answer(Status(Code::unavailable, "too many credentials wait for MUNGE"));
}

void PeerLinks::State::decode(std::string credential, PeerSession::Answer<Voucher> answer) {
    auto job = [this, who = credentials, credential = std::move(credential),
                answer]() -> WorkerThread::Completion {
        auto voucher = std::make_shared<Result<Voucher>>(who->decode(credential));
        return [this, answer, voucher] {
            note_munge(voucher->status());
            answer(std::move(*voucher));
        };
    };
    if (!munge.submit(std::move(job)))
        answer(Status(Code::unavailable, "too many credentials wait for MUNGE"));
}

void PeerLinks::State::note_munge(const Status &status) {
    bool away = status.code() == Code::unavailable;
    if (away == munge_away) return;
    munge_away = away;
    away ? log::error("links: MUNGE is away, no new link can be made: " + status.message())
         : log::info("links: MUNGE is back");
}

// ---- outgoing -------------------------------------------------------------------------------------

void PeerLinks::State::dial(const std::string &node, Peer &peer) {
    if (peer.wanted == 0 || !peer.idle()) return;
    DialOptions options{.port = config.peer_port,
                        .source = config.listen.address,
                        .privileged = config.privileged_ports,
                        .timeout = config.connect_timeout};
    peer.dialer = Dialer::begin(loop, resolver, peer.address, options,
                                [this, node](Result<Dialed> dialed) { on_dialed(node, std::move(dialed)); });
}

void PeerLinks::State::on_dialed(const std::string &node, Result<Dialed> dialed) {
    Peer &peer = peers[node];
    peer.dialer.reset();
    Status tuned;
    if (dialed)
        tuned = tune(dialed->socket.get(),
                     std::chrono::ceil<std::chrono::milliseconds>(config.session.dead_after));
    if (!dialed || !tuned.ok()) return retry_later(node, peer, dialed ? tuned : dialed.status());
    if (peer.link) return;
    peer.outgoing = std::make_shared<PeerSession>(loop, config.session, dialed->remote, session_callbacks());
    peer.outgoing->start(std::move(dialed->socket), identity(), node, true);
}

void PeerLinks::State::retry_later(const std::string &node, Peer &peer, const Status &why) {
    if (peer.wanted == 0 || !peer.idle()) return;
    if (peer.pause == EventLoop::Time(0) && !why.ok() && why.code() != Code::already_exists)
        log::warning("links: no link to " + node + " yet: " + why.to_string());
    peer.pause = peer.pause == EventLoop::Time(0) ? config.reconnect_min
                                                  : std::min(2 * peer.pause, config.reconnect_max);
    // Up to a quarter longer, so that two that collide do not do so again.
    auto jitter = EventLoop::Time(static_cast<EventLoop::Time::rep>(
        random_u64() % static_cast<std::uint64_t>(peer.pause.count() / 4 + 1)));
    peer.retry = loop.after(peer.pause + jitter, [this, node] {
        auto it = peers.find(node);
        if (it == peers.end()) return;
        it->second.retry.reset();
        dial(node, it->second);
    });
}

// ---- links ------------------------------------------------------------------------------------------

/// Two links to one process of the peer, opened by either side at the same time: both sides keep the one that
/// the smaller name opened. In every other case the newer one counts: the peer has lost the older.
static bool keep_older(const PeerSession &older, const PeerSession &newer, const std::string &self) {
    if (older.peer_instance() != newer.peer_instance() || older.initiated() == newer.initiated())
        return false;
    const std::string &older_by = older.initiated() ? self : older.peer();
    const std::string &newer_by = newer.initiated() ? self : newer.peer();
    return older_by < newer_by;
}

void PeerLinks::State::on_up(const Session &session) {
    const std::string node = session->peer();
    Peer &peer = peers[node];
    incoming.erase(session);
    if (peer.outgoing == session) peer.outgoing.reset();
    if (peer.link && keep_older(*peer.link, *session, config.node)) {
        session->close(link::Reason::Duplicate, "there is a link already");
        return retire(session);
    }
    if (peer.link) {
        peer.link->close(link::Reason::Duplicate, "a newer link is there");
        lose(node, peer, "replaced by a newer one", false);
    }
    // Looked up again: the daemon may have released the peer from its callback.
    Peer &present = peers[node];
    present.link = session;
    present.dialer.reset();
    present.retry.reset();
    present.pause = EventLoop::Time(0);
    if (present.wanted > 0) session->send_want(true);
    log::info("links: " + node + " (" + session->remote().host() + ") is up" +
              (session->guest() ? ", as a guest" : ""));
    tell(node, true);
}

void PeerLinks::State::on_end(const Session &session, const Status &why) {
    if (incoming.erase(session) > 0) {
        retire(session);
        bool ordinary = why.code() == Code::unavailable || why.code() == Code::already_exists;
        log::write(
            ordinary ? log::Level::debug : log::Level::warning,
            "links: a connection from " + session->remote().host() + " came to nothing: " + why.message());
        return;
    }
    const std::string node = session->peer();
    Peer &peer = peers[node];
    if (peer.link == session) {
        lose(node, peer, why.message(), false);
        // The daemon may have released the peer from its callback.
        if (auto it = peers.find(node); it != peers.end()) retry_later(node, it->second, {});
    } else {
        if (peer.outgoing == session) peer.outgoing.reset();
        retire(session);
        retry_later(node, peer, why);
    }
    forget_if_unused(node);
}

void PeerLinks::State::on_want(const Session &session) {
    const std::string node = session->peer();
    auto it = peers.find(node);
    if (it == peers.end() || it->second.link != session || it->second.wanted > 0 || session->peer_wants())
        return;
    session->close(link::Reason::Unknown, "nobody needs it");
    lose(node, it->second, "nobody needs it", false);
    forget_if_unused(node);
}

/// The link is gone: tells the daemon, at once or from the loop.
void PeerLinks::State::lose(const std::string &node, Peer &peer, const std::string &why, bool later) {
    retire(std::move(peer.link));
    peer.link.reset();
    log::info("links: " + node + " is down: " + why);
    if (!later) return tell(node, false);
    loop.post([this, guard = alive, node] {
        if (*guard) tell(node, false);
    });
}

/// Sessions are inside their own callbacks when they end.
void PeerLinks::State::retire(Session session) {
    loop.post([session = std::move(session)] {});
}

void PeerLinks::State::forget_if_unused(const std::string &node) {
    auto it = peers.find(node);
    if (it != peers.end() && it->second.wanted == 0 && it->second.idle()) peers.erase(it);
}

void PeerLinks::State::tell(const std::string &node, bool is_up) {
    if (callbacks.on_link) callbacks.on_link(node, is_up);
}

PeerLinksConfig links_config(const Settings &settings) {
    const Settings::Network &n = settings.network;
    PeerLinksConfig config;
    config.listen = {.address = n.listen, .interface = n.interface, .port = n.port};
    config.session.connection = {.queue_bytes = n.peer_queue.value, .frame_timeout = n.frame_timeout};
    config.session.handshake_timeout = n.handshake_timeout;
    config.session.probe = n.probe;
    config.session.dead_after = n.dead_after;
    config.addresses.check_addresses = settings.security.check_addresses;
    config.addresses.accept_guests = settings.security.accept_relays;
    config.connect_timeout = n.connect_timeout;
    config.reconnect_min = n.reconnect_min;
    config.reconnect_max = n.reconnect_max;
    return config;
}

// ---- PeerLinks --------------------------------------------------------------------------------------

PeerLinks::PeerLinks(std::unique_ptr<State> state) : state_(std::move(state)) {}

PeerLinks::~PeerLinks() {
    State &s = *state_;
    *s.alive = false;
    for (auto &[node, peer] : s.peers) {
        if (peer.link) peer.link->close(link::Reason::Unknown, "the daemon stops");
        if (peer.outgoing) peer.outgoing->close(link::Reason::Unknown, "the daemon stops");
    }
    for (const Session &session : s.incoming) session->close(link::Reason::Busy, "the daemon stops");
}

Result<std::unique_ptr<PeerLinks>> PeerLinks::create(EventLoop &loop, PeerLinksConfig config,
                                                     std::shared_ptr<Credentials> credentials,
                                                     LookUp look_up) {
    DLROVER_TRY(init_crypto());
    if (!good_name(config.node) || !good_name(config.cluster))
        return Status(Code::invalid_argument, "links: a node or cluster without a proper name: \"" +
                                                  config.node + "\", \"" + config.cluster + "\"");
    auto listener = listen_on(config.listen);
    if (!listener) return std::move(listener.take_status()).with_context("links");
    auto address = local_address(listener->get());
    if (!address) return address.take_status();
    config.listen.port = address->port();
    if (config.peer_port == 0) config.peer_port = config.listen.port;
    auto state = std::make_unique<State>(loop, std::move(config), std::move(credentials), std::move(look_up),
                                         std::move(*listener));
    return std::unique_ptr<PeerLinks>(new PeerLinks(std::move(state)));
}

void PeerLinks::set_callbacks(Callbacks callbacks) {
    state_->callbacks = std::move(callbacks);
}

std::uint16_t PeerLinks::port() const {
    return state_->config.listen.port;
}

void PeerLinks::connect_to(const std::string &node, const std::string &address) {
    State &s = *state_;
    if (node == s.config.node || !good_name(node)) return;
    Peer &peer = s.peers[node];
    peer.address = address;
    s.addresses.learn(node, address);
    if (peer.wanted++ == 0 && peer.link) peer.link->send_want(true);
    s.dial(node, peer);
}

void PeerLinks::release(const std::string &node) {
    State &s = *state_;
    auto it = s.peers.find(node);
    if (it == s.peers.end() || it->second.wanted == 0) return;
    Peer &peer = it->second;
    if (--peer.wanted > 0) return;
    s.addresses.learn(node, "");
    peer.dialer.reset();
    peer.retry.reset();
    if (peer.outgoing) {
        peer.outgoing->close(link::Reason::Unknown, "nobody needs it");
        s.retire(std::move(peer.outgoing));
        peer.outgoing.reset();
    }
    if (peer.link && peer.link->peer_wants()) {
        peer.link->send_want(false);
    } else if (peer.link) {
        peer.link->close(link::Reason::Unknown, "nobody needs it");
        s.lose(node, peer, "nobody needs it", true);
    }
    s.forget_if_unused(node);
}

void PeerLinks::send(const std::string &node, PeerEnvelope envelope) {
    // For the other fields of the table.
    constexpr std::size_t slack = 1024;
    auto it = state_->peers.find(node);
    if (it == state_->peers.end() || !it->second.link) return;
    if (envelope.payload.size() > max_body_bytes - slack)
        return log::error("links: a message of " + std::to_string(envelope.payload.size()) + " bytes to " +
                          node + " is too large and was dropped");
    it->second.link->send(std::move(envelope));
}

bool PeerLinks::up(const std::string &node) const {
    auto it = state_->peers.find(node);
    return it != state_->peers.end() && it->second.link && it->second.link->up();
}

bool PeerLinks::takes(const std::string &node, PeerEnvelope::Kind kind) const {
    auto it = state_->peers.find(node);
    bool is_up = it != state_->peers.end() && it->second.link && it->second.link->up();
    return !is_up || it->second.link->takes(kind);
}

std::string PeerLinks::own_address() const {
    for (const auto &[node, peer] : state_->peers)
        if (peer.link && peer.link->up()) return peer.link->own_address();
    return "";
}

}  // namespace dlrover::transport
