// SPDX-License-Identifier: Apache-2.0
#include "daemon/group_copies.h"

#include <algorithm>
#include <utility>

#include "daemon/random_bytes.h"
#include "daemon/wall_clock.h"

namespace dlrover::daemon {
namespace {

using Kind = MoveWord::Kind;

constexpr EventLoop::Time tick_interval = std::chrono::milliseconds(250);
/// For the next word about an object, besides the time that its bytes take.
constexpr EventLoop::Time word_limit = std::chrono::seconds(10);
/// Since the last sign that what a rank goes on from is coming.
constexpr EventLoop::Time fetch_limit = std::chrono::seconds(30);
/// Of one object that is fetched, each followed by a longer pause.
constexpr std::uint32_t max_fetch_failures = 5;
constexpr std::size_t max_incoming = 64, max_held_up = 4096, key_bytes = 32;
constexpr std::uint16_t by_tcp = 1, by_ucx = 2;  // docs/protocol-mover.md
/// Of an offer's ways: the mover is exact (proto/move.fbs).
constexpr std::uint16_t exact_bit = 1u << 15;
/// Slower is stuck.
constexpr std::uint64_t slowest_bytes_per_ms = 2000;

std::uint64_t bytes_of(const local::SealT &object) {
    return object.table_offset + object.table_bytes;
}

std::chrono::milliseconds transfer_limit(std::uint64_t bytes) {
    return std::chrono::seconds(30) +
           std::chrono::milliseconds(static_cast<std::int64_t>(bytes / slowest_bytes_per_ms));
}

MoveWord word_about(Kind kind, Rank rank, const CheckpointId &id) {
    MoveWord word;
    word.kind = kind;
    word.rank = rank;
    word.id = id;
    return word;
}

NamedObject name_of(const elastic::Copy &copy, const local::SealT &seal, std::uint32_t world_size) {
    return {copy.id,           world_size,       copy.rank,       seal.data_bytes,
            seal.table_offset, seal.table_bytes, seal.table_xxh3, !is_rank(copy.rank)};
}

}  // namespace

GroupCopies::GroupCopies(Services services, Hooks hooks)
    : services_(services),
      hooks_(std::move(hooks)),
      parity_({services.loop, services.arena},
              {[this](NodeIndex from, Rank part, const CheckpointId &id) {
                   hooks_.send(from, word_about(Kind::Fetch, part, id));
               },
               [this] { hooks_.changed(); },
               [this](Rank rank, const Status &status) { on_rebuilt(rank, status); }}),
      // Numbers of a former daemon are lower.
      copier_(services.copier, static_cast<std::uint64_t>(wall_clock_us())) {}

GroupCopies::~GroupCopies() {
    *alive_ = false;
}

void GroupCopies::later(std::function<void()> task) {
    services_.loop.post([alive = alive_, task = std::move(task)] {
        if (*alive) task();
    });
}

void GroupCopies::use_mover(GroupMover *mover) {
    mover_ = mover;
    parity_.use_mover(mover);
}

void GroupCopies::stop() {
    stopped_ = true;
    protecting_.reset();
    parity_.stop();
    early_.clear();
    held_up_.clear();
    wanted_.clear();
    fetched_ = {};
    fetch_trouble_.clear();
    gave_up_.clear();
    act(copier_.clear(services_.loop.now()));
    std::vector<IncomingKey> keys;
    for (const auto &[key, in] : incoming_) keys.push_back(key);
    for (const auto &key : keys) cancel(key);
    sent_whole_.clear();
}

void GroupCopies::on_world(Part part) {
    stop();
    stopped_ = false;
    part_ = std::move(part);
    wanted_since_ = services_.loop.now();
    if (part_.coding) parity_.on_world(*part_.coding);
    for (Rank rank : part_.ranks)
        if (part_.restore && parity_.rebuilds(rank, *part_.restore)) wanted_[rank].from = part_.coding->self;
    for (const auto &source : part_.sources)
        if (part_.restore && !services_.arena.holds(source.rank, *part_.restore))
            wanted_[source.rank].from = source.node;
    fetched_.objects = static_cast<std::uint32_t>(wanted_.size());
    for (auto &[rank, wanted] : wanted_) ask_for(rank, wanted);
    schedule();
}

void GroupCopies::protect(const CheckpointId &id) {
    if (stopped_) return;
    protecting_ = id;
    parity_.protect(id);
    for (Rank rank : of_other_size(id) ? part_.answers : std::vector<Rank>{}) want(rank, false);
    push_copies();
    for (const auto &[key, word] : std::exchange(early_, {})) on_offer(key.first, word);
}

void GroupCopies::settled(const std::optional<CheckpointId> &id) {
    copier_.settled(id);
    schedule();
}

void GroupCopies::on_dropped(Rank rank, const CheckpointId &id) {
    act(copier_.lost(services_.loop.now(), rank, id));
}

void GroupCopies::want(Rank rank, bool restores) {
    bool known = !stopped_ && rank.value() < part_.homes.size();
    if (!known || !gave_up_.empty()) return;
    if (auto it = wanted_.find(rank); it != wanted_.end()) {
        it->second.restores = it->second.restores || restores;
        return;
    }
    if (services_.arena.holds(rank, *part_.restore)) return;
    if (wanted_.empty()) wanted_since_ = services_.loop.now();
    Wanted &wanted = wanted_[rank];
    wanted.from = part_.homes[rank.value()];
    wanted.restores = restores;
    ++fetched_.objects;
    ask_for(rank, wanted);
    schedule();
}

/// Of what is here by now: a rank's object may itself be on its way. What a world of another size has saved
/// gets its copies from who answers for it.
void GroupCopies::push_copies() {
    if (!protecting_) return;
    std::vector<Rank> here;
    for (Rank rank : of_other_size(*protecting_) ? part_.answers : part_.ranks)
        if (services_.arena.holds(rank, *protecting_)) here.push_back(rank);
    act(copier_.protect(services_.loop.now(), *protecting_, here, part_.partners));
}

void GroupCopies::on_word(NodeIndex from, const MoveWord &word) {
    switch (word.kind) {
        case Kind::Fetch:
            return on_fetch(from, word);
        case Kind::Offer:
            return on_offer(from, word);
        case Kind::Accept:
            return on_accept(from, word);
        case Kind::Refuse:
            if (word.number == 0 && is_wanted(word.rank, word.id)) fetch_trouble_ = word.text;
            if (word.number == 0) parity_.on_part_failed(from, word.rank, word.text);
            if (outgoing(from, word.number) != nullptr) fail(word.number, word.text, false);
            return;
        case Kind::Held:
            if (outgoing(from, word.number) == nullptr) return;
            finish(word.number);
            return act(copier_.done(services_.loop.now(), word.number));
        case Kind::Drop:
            return on_drop(from, word);
        case Kind::Missing:
            return on_missing(from, word);
        case Kind::Wait:
            return on_wait(from, word);
        case Kind::FetchTable:
        case Kind::Table:
        case Kind::Try:
        case Kind::TryAccept:
        case Kind::TryBack:
        case Kind::TryFailed:
        case Kind::None:
            return;
    }
}

// ---- what leaves ----

void GroupCopies::act(elastic::Copier::Actions actions) {
    for (auto &action : actions) {
        if (auto *to_begin = std::get_if<elastic::CopyBegin>(&action)) begin(*to_begin);
        if (auto *dropped = std::get_if<elastic::CopyDrop>(&action)) {
            auto it = outgoing_.find(dropped->number);
            if (it == outgoing_.end()) continue;
            MoveWord word = word_about(Kind::Drop, it->second.copy.rank, it->second.copy.id);
            word.number = dropped->number;
            hooks_.send(it->second.copy.to, word);
            finish(dropped->number);
        }
        if (auto *state = std::get_if<elastic::CopyState>(&action))
            later([this, state = *state] { hooks_.protection(state.works, state.text); });
    }
    schedule();
}

void GroupCopies::begin(const elastic::CopyBegin &begin) {
    const elastic::Copy &copy = begin.copy;
    auto refuse = [&](std::string text) {
        later([this, number = begin.number, text = std::move(text)] {
            act(copier_.failed(services_.loop.now(), number, text));
        });
    };
    if (mover_ == nullptr || !mover_->ready()) return refuse("dlrover-mover does not run here");
    auto object = services_.arena.begin_read(copy.rank, copy.id);
    if (!object) return refuse(object.status().message());
    Outgoing out{copy,
                 std::move(*object),
                 services_.arena.world_size(copy.rank, copy.id),
                 begin.asked,
                 0,
                 services_.loop.now() + word_limit};
    offer(begin.number, out);
    outgoing_.emplace(begin.number, std::move(out));
}

void GroupCopies::offer(std::uint64_t number, const Outgoing &out) {
    MoveWord word = word_about(Kind::Offer, out.copy.rank, out.copy.id);
    word.number = number;
    word.world_size = out.world_size;
    if (mover_ != nullptr) word.ways = ways_to(out.copy.to) | (mover_->exact() ? exact_bit : 0);
    word.object = out.object.seal;
    word.asked = out.asked;
    hooks_.send(out.copy.to, word);
}

GroupCopies::Outgoing *GroupCopies::outgoing(NodeIndex to, std::uint64_t number) {
    auto it = outgoing_.find(number);
    return it == outgoing_.end() || it->second.copy.to != to ? nullptr : &it->second;
}

void GroupCopies::on_accept(NodeIndex from, const MoveWord &word) {
    Outgoing *out = outgoing(from, word.number);
    if (out == nullptr || out->order != 0) return;
    if (mover_ == nullptr) return fail(word.number, "dlrover-mover does not run here");
    ObjectToSend send;
    send.segments = out->object.place.segments;
    send.bytes = bytes_of(out->object.seal);
    send.transfer = word.transfer;
    send.object = name_of(out->copy, out->object.seal, out->world_size);
    send.key = word.key;
    send.address = hooks_.address_of(from);
    send.port = word.port;
    send.way = word.way;
    out->by_ucx = word.way == by_ucx;
    send.wait = transfer_limit(send.bytes);
    out->deadline = services_.loop.now() + send.wait + GroupMover::patience + word_limit;
    out->order = mover_->send(std::move(send), [this, alive = alive_, number = word.number, copy = out->copy,
                                                slot = out->object.place.slot](const Status &status, bool) {
        if (*alive) on_sent(number, copy, slot, status);
    });
}

/// From here on the mover reads nothing of it. The other node's Held is what counts.
void GroupCopies::on_sent(std::uint64_t number, const elastic::Copy &copy, SlotIndex slot,
                          const Status &status) {
    services_.arena.end_read(copy.rank, slot);
    if (status.code() == Code::corrupt) {
        on_dropped(copy.rank, copy.id);
        later([this, rank = copy.rank, id = copy.id, slot] { hooks_.damaged(rank, id, slot); });
    }
    auto it = outgoing_.find(number);
    if (it == outgoing_.end()) return;
    it->second.deadline = services_.loop.now() + word_limit;
    if (it->second.by_ucx) note_ucx(copy.to, status);
    if (!status.ok()) fail(number, status.message());
}

std::uint16_t GroupCopies::ways_to(NodeIndex node) const {
    std::uint16_t all = mover_->ways();
    return ucx_trust_.trusts(node, services_.loop.now()) ? all : all & static_cast<std::uint16_t>(~by_ucx);
}

/// How an object's way by UCX has ended. What does not match its checksums is no fault of the way.
void GroupCopies::note_ucx(NodeIndex node, const Status &status) {
    if (status.ok()) return ucx_trust_.worked(node);
    if (status.code() == Code::corrupt || !ucx_trust_.failed(node, services_.loop.now())) return;
    later([this, node, why = status.message()] {
        if (hooks_.ucx_failed) hooks_.ucx_failed(node, why);
    });
}

/// What the mover still reads is let go when it says so. cancel: else it ends by itself, and says more.
void GroupCopies::finish(std::uint64_t number, bool cancel) {
    auto it = outgoing_.find(number);
    if (it == outgoing_.end()) return;
    if (it->second.order == 0)
        services_.arena.end_read(it->second.copy.rank, it->second.object.place.slot);
    else if (mover_ != nullptr && cancel)
        mover_->cancel(it->second.order);
    outgoing_.erase(it);
}

/// cancel: false where the other side refused it: this one's mover may be looking whether the fault is here.
void GroupCopies::fail(std::uint64_t number, const std::string &text, bool cancel) {
    auto it = outgoing_.find(number);
    if (it == outgoing_.end()) return;
    MoveWord word = word_about(Kind::Drop, it->second.copy.rank, it->second.copy.id);
    word.number = number;
    word.text = text;
    hooks_.send(it->second.copy.to, word);
    finish(number, cancel);
    act(copier_.failed(services_.loop.now(), number, text));
}

void GroupCopies::on_fetch(NodeIndex from, const MoveWord &word) {
    if (stopped_) return;  // it asks again
    if (parity_.rebuilds(word.rank, word.id)) return answer(from, Kind::Wait, word);
    if (!services_.arena.holds(word.rank, word.id))
        return answer(from, Kind::Missing, word, "it does not hold that object any more");
    if (mover_ == nullptr || !mover_->ready())
        return answer(from, Kind::Refuse, word, "dlrover-mover does not run there");
    act(copier_.fetch(services_.loop.now(), {from, word.rank, word.id}));
}

// ---- what comes ----

void GroupCopies::answer(NodeIndex to, Kind kind, const MoveWord &to_word, const std::string &text) {
    MoveWord word = word_about(kind, to_word.rank, to_word.id);
    word.number = to_word.number;
    word.text = text;
    hooks_.send(to, word);
}

bool GroupCopies::runs_here(Rank rank) const {
    return std::ranges::find(part_.ranks, rank) != part_.ranks.end();
}

bool GroupCopies::is_wanted(Rank rank, const CheckpointId &id) const {
    return wanted_.contains(rank) && part_.restore == id;
}

/// What is to be added up does not stay.
bool GroupCopies::passes(NodeIndex from, const MoveWord &word) const {
    return word.asked ? parity_.asks_for(from, word.rank, word.id) : parity_.coded();
}

/// A copy is taken only of the step that the leader has told this node, too: then it knows also what of the
/// older ones is safe.
std::string GroupCopies::reason_against(NodeIndex from, const MoveWord &word) const {
    if (stopped_) return "a new world is being prepared";
    bool passing = passes(from, word);
    if (passing ? word.asked : is_wanted(word.rank, word.id)) return {};
    bool runs = !passing && runs_here(word.rank) && !of_other_size(word.id);
    bool belongs = !passing || parity_.need_of(word.rank, word.id) != GroupParity::Need::none;
    if (!part_.guests.contains(from) || runs || !belongs || (parity_.coded() && word.asked))
        return "this node keeps no copies of that one's objects";
    if (protecting_ != word.id) return "it is not the step that gets its copies now";
    return {};
}

/// The leader's word travels to both nodes at the same time, and the offer follows at once.
bool GroupCopies::is_early(NodeIndex from, const MoveWord &word) const {
    bool asked = parity_.coded() ? word.asked : is_wanted(word.rank, word.id);
    return !stopped_ && part_.guests.contains(from) && protecting_ != word.id && !asked;
}

bool GroupCopies::is_here(NodeIndex from, const MoveWord &word) const {
    if (!passes(from, word)) return services_.arena.holds(word.rank, word.id);
    return !word.asked && !stopped_ && parity_.need_of(word.rank, word.id) == GroupParity::Need::done;
}

/// It is on its way, from here or from there.
bool GroupCopies::is_taken(NodeIndex from, const MoveWord &word) {
    auto it = incoming_.find({from, word.number});
    if (it == incoming_.end()) return false;
    it->second.heard_at = services_.loop.now();
    if (it->second.accept)
        hooks_.send(from, *it->second.accept);  // it was lost
    else
        answer(from, Kind::Wait, word);  // it is made ready, or is used
    return true;
}

void GroupCopies::on_offer(NodeIndex from, const MoveWord &word) {
    IncomingKey key(from, word.number);
    if (word.asked) parity_.on_part_waits(from, word.rank);
    if (!incoming_.contains(key) && is_here(from, word)) return answer(from, Kind::Held, word);
    if (is_early(from, word) && early_.size() < max_incoming) {
        early_[key] = word;
        return;
    }
    if (is_taken(from, word)) return;
    std::string against = reason_against(from, word);
    auto same = [&](const auto &entry) {
        const MoveWord &other = entry.second.offer;
        return other.rank == word.rank && other.id == word.id && other.asked == word.asked;
    };
    if (against.empty() && (mover_ == nullptr || !mover_->ready() || mover_->port() == 0))
        against = "dlrover-mover does not run there";
    if (against.empty() && (incoming_.size() >= max_incoming || std::ranges::any_of(incoming_, same)))
        against = "it is busy";
    if (!against.empty()) return answer(from, Kind::Refuse, word, against);
    take(from, word);
}

void GroupCopies::take(NodeIndex from, const MoveWord &word) {
    IncomingKey key(from, word.number);
    bool passing = passes(from, word);
    // What is lost comes first.
    if (passing && !word.asked && parity_.rebuilds()) return hold_up(from, word);
    if (Status open = passing && !word.asked ? parity_.open(word) : Status(); !open.ok())
        return answer(from, Kind::Refuse, word, open.message());
    Incoming in{word, passing ? passage : word.rank, ckpt::lasting_holder | ++last_holder_};
    auto place = services_.arena.begin_copy(in.place, in.holder, word.id, bytes_of(word.object),
                                            [this, alive = alive_, key](Status stored) {
                                                if (!*alive || !incoming_.contains(key)) return;
                                                if (!stored.ok()) return refuse(key, stored.message());
                                                receive(key);
                                            });
    if (place.ok() && !place->has_value() && passing) return hold_up(from, word);
    if (!place || !place->has_value()) {
        std::string why = place ? "no slot is free there" : place.status().message();
        answer(from, Kind::Refuse, word, why);
        if (is_wanted(word.rank, word.id)) on_fetch_failed(word.rank, why);
        return;
    }
    in.slot = (*place)->slot;
    in.segments = (*place)->segments;
    in.heard_at = services_.loop.now();
    incoming_[key] = std::move(in);
    schedule();
    if (!passing && is_wanted(word.rank, word.id)) wanted_.at(word.rank).bytes = bytes_of(word.object);
    if ((*place)->overwrites) later([this] { hooks_.changed(); });
}

/// Its turn comes when another one has passed.
void GroupCopies::hold_up(NodeIndex from, const MoveWord &word) {
    if (held_up_.size() < max_held_up) held_up_[{from, word.number}] = word;
    answer(from, Kind::Wait, word);
}

/// Those that are still wanted are offered again by themselves.
void GroupCopies::take_next() {
    for (const auto &[key, word] : std::exchange(held_up_, {})) on_offer(key.first, word);
}

void GroupCopies::on_wait(NodeIndex from, const MoveWord &word) {
    if (Outgoing *out = outgoing(from, word.number)) {
        out->deadline = std::max(out->deadline, services_.loop.now() + word_limit);
        return;
    }
    parity_.on_part_waits(from, word.rank);
    if (!is_wanted(word.rank, word.id)) return;
    wanted_since_ = services_.loop.now();
    wanted_.at(word.rank).failures = 0;
}

/// Objects of the same step here may have the same bytes: what is the same on all ranks (data parallelism).
/// Parities are made of all bytes, also of those between chunks.
std::vector<LentObject> GroupCopies::lend(Incoming &in) {
    std::vector<LentObject> all;
    const CheckpointId &id = in.offer.id;
    bool exact = mover_->exact() && (in.offer.ways & exact_bit) != 0, is_parity = !is_rank(in.offer.rank);
    bool every_byte = parity_.coded() || in.place == passage;
    if (is_parity || (every_byte && !exact) || sent_whole_.contains(in.offer.rank)) return all;
    std::size_t room = mover_->room_for_own(in.segments.size());
    for (Rank rank : services_.arena.holders(id)) {
        if (!is_rank(rank) || rank == in.offer.rank) continue;
        if (services_.arena.world_size(rank, id) != in.offer.world_size) continue;
        auto object = services_.arena.begin_read(rank, id);
        if (!object) continue;
        if (object->place.segments.size() > room) {
            services_.arena.end_read(rank, object->place.slot);
            break;
        }
        room -= object->place.segments.size();
        in.lent.emplace_back(rank, object->place.slot);
        const auto &seal = object->seal;
        all.push_back({rank, std::move(object->place.segments), seal.data_bytes, seal.table_offset,
                       seal.table_bytes, seal.table_xxh3});
    }
    return all;
}

/// What is here already may be why it failed.
void GroupCopies::spare_nothing(Rank rank, const std::string &why) {
    if (sent_whole_.insert(rank).second)
        log::info(services_.about, "a copy of rank " + std::to_string(rank.value()) + " did not come (" +
                                       why + "): in this world its copies are sent whole");
}

void GroupCopies::take_back(Incoming &in) {
    for (const auto &[rank, slot] : std::exchange(in.lent, {})) services_.arena.end_read(rank, slot);
}

/// The grant is on record: from now on the memory may be written.
void GroupCopies::receive(const IncomingKey &key) {
    Incoming &in = incoming_.at(key);
    if (in.cancelled || mover_ == nullptr) return refuse(key, "the copy is not wanted any more");
    ObjectToReceive object;
    const auto &seal = in.offer.object;
    object.id = in.offer.id;
    object.world_size = in.offer.world_size;
    object.rank = in.offer.rank;
    object.segments = in.segments;
    object.data_bytes = seal.data_bytes;
    object.table_offset = seal.table_offset;
    object.table_bytes = seal.table_bytes;
    object.table_xxh3 = seal.table_xxh3;
    object.parity = !is_rank(in.offer.rank);
    object.chunks_only = !parity_.coded() && in.place != passage;
    object.key = random_bytes(key_bytes);
    if (object.key.empty()) return refuse(key, "the system has no random numbers");
    object.transfer = in.holder & ~ckpt::lasting_holder;
    object.from = hooks_.address_of(key.first);
    object.own = lend(in);
    object.wait = transfer_limit(bytes_of(seal));
    MoveWord accept = word_about(Kind::Accept, in.offer.rank, in.offer.id);
    accept.number = key.second;
    accept.port = mover_->port();
    accept.way = (ways_to(key.first) & in.offer.ways & by_ucx) != 0 ? by_ucx : by_tcp;
    accept.transfer = object.transfer;
    accept.key = object.key;
    in.order = mover_->receive(
        std::move(object),
        [this, alive = alive_, key, accept = std::move(accept)](const Status &status) {
            if (*alive) on_expecting(key, accept, status);
        },
        [this, alive = alive_, key](const Status &status, std::uint64_t spared) {
            if (*alive) on_arrived(key, status, spared);
        });
}

/// Not before: the mover would take the sender for a stranger.
void GroupCopies::on_expecting(const IncomingKey &key, const MoveWord &accept, const Status &status) {
    auto it = incoming_.find(key);
    if (it == incoming_.end()) return;
    if (!status.ok()) return refuse(key, status.message());
    if (it->second.cancelled) return;
    it->second.accept = accept;
    hooks_.send(key.first, accept);
}

void GroupCopies::on_arrived(const IncomingKey &key, const Status &status, std::uint64_t spared) {
    auto it = incoming_.find(key);
    if (it == incoming_.end()) return;
    Incoming &in = it->second;
    if (!in.cancelled && in.accept && in.accept->way == by_ucx) note_ucx(key.first, status);
    if (in.cancelled || !status.ok()) return refuse(key, status.message());
    in.order = 0;
    take_back(in);
    arrived_.bytes += bytes_of(in.offer.object);
    arrived_.spared_bytes += std::min(spared, bytes_of(in.offer.object));
    if (in.place == passage) return pass_on(key);
    in.offer.object.slot = static_cast<std::uint16_t>(in.slot.value());
    Status sealed =
        services_.arena.seal(in.offer.rank, in.holder, in.offer.id.generation, in.offer.world_size,
                             in.offer.object, [this, alive = alive_, key](const Status &stored) {
                                 if (*alive) on_sealed(key, stored);
                             });
    if (!sealed.ok()) refuse(key, sealed.message());
}

/// Into the sum that it is for. The slot is given back when that has it.
void GroupCopies::pass_on(const IncomingKey &key) {
    Incoming &in = incoming_.at(key);
    in.arrived = true;
    in.accept.reset();
    auto done = [this, alive = alive_, key](const Status &status) {
        if (*alive) on_passed(key, status);
    };
    if (in.offer.asked)
        parity_.take_part(key.first, in.offer, in.segments, done);
    else
        parity_.take_push(in.offer, in.segments, done);
}

void GroupCopies::on_passed(const IncomingKey &key, const Status &status) {
    auto it = incoming_.find(key);
    if (it == incoming_.end()) return;
    Incoming in = std::move(it->second);
    incoming_.erase(it);
    (void)services_.arena.abort(in.place, in.slot, in.holder).ok();
    answer(key.first, status.ok() ? Kind::Held : Kind::Refuse, in.offer, status.message());
    take_next();
}

/// What could not be made again is as gone as before: the next world knows.
void GroupCopies::on_rebuilt(Rank rank, const Status &status) {
    hooks_.changed();
    take_next();
    bool wanted = part_.restore && is_wanted(rank, *part_.restore);
    bool here = wanted && services_.arena.holds(rank, *part_.restore);
    if (here) return on_fetched(rank);
    if (status.ok()) return push_copies();
    // A word of the world before is none of this one's.
    bool waits = wanted && part_.coding && wanted_.at(rank).from == part_.coding->self;
    if (waits && !parity_.rebuilds(rank, *part_.restore)) return give_up_fetch(rank, status.message());
    hooks_.fetched(Status(Code::unavailable, status.message()));
}

void GroupCopies::on_sealed(const IncomingKey &key, const Status &status) {
    auto it = incoming_.find(key);
    if (it == incoming_.end()) return;
    MoveWord offer = std::move(it->second.offer);
    incoming_.erase(it);
    if (!status.ok()) return answer(key.first, Kind::Refuse, offer, status.message());
    answer(key.first, Kind::Held, offer);
    later([this] { hooks_.changed(); });
    if (is_wanted(offer.rank, offer.id)) on_fetched(offer.rank);
}

void GroupCopies::on_drop(NodeIndex from, const MoveWord &word) {
    early_.erase({from, word.number});
    held_up_.erase({from, word.number});
    call_off({from, word.number}, word.text);
}

/// `text`: what went wrong on the other node; empty: nothing did.
void GroupCopies::call_off(const IncomingKey &key, const std::string &text) {
    auto it = incoming_.find(key);
    if (it == incoming_.end() || it->second.cancelled) return;
    const Incoming &in = it->second;
    bool failed = in.order != 0 && !text.empty();
    bool part = in.place == passage && in.offer.asked;
    bool wanted = in.place != passage && is_wanted(in.offer.rank, in.offer.id);
    Rank rank = in.offer.rank;
    if (failed && !in.lent.empty()) spare_nothing(rank, text);
    cancel(key);
    if (failed && part) parity_.on_part_failed(key.first, rank, text);
    if (failed && wanted) on_fetch_failed(rank, text);
}

/// The daemon that offered it was started again, or can not be reached.
void GroupCopies::drop_silent() {
    std::vector<IncomingKey> silent;
    for (const auto &[key, in] : incoming_)
        if (services_.loop.now() - in.heard_at >= word_limit) silent.push_back(key);
    for (const auto &key : silent) call_off(key, "nothing more was heard of it");
}

/// Its slot stays taken until the mover has let go of the memory.
void GroupCopies::cancel(const IncomingKey &key) {
    auto it = incoming_.find(key);
    if (it == incoming_.end()) return;
    it->second.cancelled = true;
    it->second.accept.reset();
    if (it->second.order != 0 && mover_ != nullptr) mover_->cancel(it->second.order);
}

void GroupCopies::refuse(const IncomingKey &key, const std::string &text) {
    auto it = incoming_.find(key);
    if (it == incoming_.end()) return;
    Incoming in = std::move(it->second);
    incoming_.erase(it);
    if (!in.lent.empty() && !in.cancelled) spare_nothing(in.offer.rank, text);
    take_back(in);
    (void)services_.arena.abort(in.place, in.slot, in.holder).ok();
    answer(key.first, Kind::Refuse, in.offer, text);
    if (in.place == passage) {
        bool failed = in.offer.asked && !in.cancelled && in.order != 0;
        if (failed) parity_.on_part_failed(key.first, in.offer.rank, text);
        return take_next();
    }
    if (in.cancelled || !is_wanted(in.offer.rank, in.offer.id)) return;
    if (in.order != 0) return on_fetch_failed(in.offer.rank, text);
    fetch_trouble_ = text;
}

// ---- what this node's ranks go on from ----

std::optional<GroupCopies::Fetching> GroupCopies::fetching() const {
    if (wanted_.empty()) return std::nullopt;
    Fetching all = fetched_;
    for (const auto &[rank, wanted] : wanted_) all.bytes += wanted.bytes;
    return all;
}

void GroupCopies::ask_for(Rank rank, Wanted &wanted) {
    wanted.ask_at = services_.loop.now() + tick_interval;
    if (parity_.rebuilds(rank, *part_.restore)) return;
    wanted.asked = true;
    hooks_.send(wanted.from, word_about(Kind::Fetch, rank, *part_.restore));
}

/// Once for each time that it was asked: a word may come twice, or late.
void GroupCopies::on_missing(NodeIndex from, const MoveWord &word) {
    parity_.on_part_failed(from, word.rank, word.text);
    if (!is_wanted(word.rank, word.id)) return;
    const Wanted &wanted = wanted_.at(word.rank);
    if (wanted.from == from && wanted.asked) on_fetch_failed(word.rank, word.text);
}

void GroupCopies::on_fetched(Rank rank) {
    push_copies();
    std::uint64_t bytes = wanted_.extract(rank).mapped().bytes;
    ++fetched_.objects_here;
    fetched_.bytes += bytes;
    fetched_.bytes_here += bytes;
    wanted_since_ = services_.loop.now();
    if (wanted_.empty()) later([this] { hooks_.fetched({}); });
}

void GroupCopies::on_fetch_failed(Rank rank, const std::string &text) {
    fetch_trouble_ = text;
    Wanted &wanted = wanted_.at(rank);
    wanted.asked = false;
    wanted.ask_at = services_.loop.now() + tick_interval * (1 << wanted.failures);
    if (++wanted.failures >= max_fetch_failures) give_up_fetch(rank, text);
}

/// The next world may know another source. One that no rank here goes on from is given up alone: the step
/// does not get all its copies then.
void GroupCopies::give_up_fetch(Rank rank, const std::string &text) {
    std::string why =
        "step " + std::to_string(part_.restore->step.value()) + " of rank " + std::to_string(rank.value()) +
        " could not be fetched from node " + hooks_.name_of(wanted_.at(rank).from) + ": " +
        (text.empty() ? "nothing was heard of it: see whether daemon and dlrover-mover run there" : text);
    if (wanted_.at(rank).restores) {
        wanted_.clear();
        gave_up_ = why;
    } else {
        wanted_.erase(rank);
        --fetched_.objects;
    }
    later([this, why] { hooks_.fetched(Status(Code::unavailable, why)); });
}

/// Words get lost, and the other node may know of the world only later.
void GroupCopies::check_wanted() {
    if (wanted_.empty()) return;
    auto now = services_.loop.now();
    for (auto &[rank, wanted] : wanted_) {
        bool coming = parity_.rebuilds(rank, *part_.restore) ||
                      std::ranges::any_of(incoming_, [&, r = rank](const auto &entry) {
                          const Incoming &in = entry.second;
                          bool works = in.order == 0 || (mover_ && mover_->is_worked_on(in.order));
                          return in.offer.rank == r && !in.cancelled && works;
                      });
        if (coming) wanted_since_ = now;
        if (!coming && now >= wanted.ask_at) ask_for(rank, wanted);
    }
    if (now - wanted_since_ < fetch_limit) return;
    auto first = std::ranges::find_if(wanted_, [](const auto &entry) { return entry.second.restores; });
    give_up_fetch(first == wanted_.end() ? wanted_.begin()->first : first->first, fetch_trouble_);
}

// ---- time ----

void GroupCopies::schedule() {
    if (timer_) return;
    if (outgoing_.empty() && incoming_.empty() && wanted_.empty() && !parity_.busy() &&
        copier_.deadline() == elastic::Time::max())
        return;
    timer_ = services_.loop.after(tick_interval, [this] { tick(); });
}

void GroupCopies::tick() {
    timer_.reset();
    auto now = services_.loop.now();
    std::vector<std::uint64_t> overdue;
    for (const auto &[number, out] : outgoing_)
        if (now >= out.deadline)
            overdue.push_back(number);
        else
            offer(number, out);
    for (std::uint64_t number : overdue) fail(number, "the other node does not answer");
    drop_silent();
    parity_.tick();
    check_wanted();
    act(copier_.tick(now));
}

}  // namespace dlrover::daemon
