// SPDX-License-Identifier: Apache-2.0
#include "daemon/group_check.h"

#include <cstring>

#include "ckpt/segment.h"
#include "daemon/random_bytes.h"

namespace dlrover::daemon {
namespace {

using Kind = MoveWord::Kind;

/// For all of it: the leader gives up a moment after (elastic/checking.cpp).
constexpr EventLoop::Time limit = std::chrono::seconds(18), limit_with_gpus = std::chrono::seconds(28);
constexpr EventLoop::Time mover_limit = std::chrono::seconds(6);  ///< for one to come
constexpr std::chrono::milliseconds step_limit{8000};             ///< as fail() says
/// GPUs that nobody has used since their driver was loaded may take seconds for each to get ready.
constexpr std::chrono::milliseconds gpus_limit{13000};
constexpr EventLoop::Time look_again = std::chrono::milliseconds(100);
constexpr std::size_t key_bytes = 32;
constexpr std::uint16_t by_tcp = 1;

}  // namespace

GroupCheck::~GroupCheck() {
    *alive_ = false;
}

bool GroupCheck::is_word_of_check(Kind kind) {
    return kind == Kind::Try || kind == Kind::TryAccept || kind == Kind::TryBack || kind == Kind::TryFailed;
}

/// Pages come when the mover touches them, and are its job's.
Result<ArenaSegment> GroupCheck::make_memory() const {
    DLROVER_TRY(hooks_.room());
    auto fd = ckpt::create_segment("dlrover-check", bytes);
    if (!fd) return fd.take_status();
    return ArenaSegment{SegmentId(1), bytes, std::make_shared<const UniqueFd>(std::move(*fd))};
}

void GroupCheck::say(NodeIndex to, Kind kind, std::uint64_t number, const std::string &text) {
    MoveWord word;
    word.kind = kind;
    word.number = number;
    word.text = text;
    hooks_.send(to, word);
}

// ---- the node that was told to -------------------------------------------------------------------

void GroupCheck::run(const elastic::RunCheck &check) {
    own_ = Own{};
    own_->check = check;
    own_->number = ++last_number_;
    own_->until = loop_.now() + (check.gpus ? limit_with_gpus : limit);
    own_->mover_until = loop_.now() + mover_limit;
    begin();
}

/// The mover of a node that has just joined may come a moment later.
void GroupCheck::begin() {
    if (loop_.now() >= own_->mover_until) return fail("no dlrover-mover runs here");
    GroupMover *mover = hooks_.mover();
    if (!mover) {
        own_->timer = loop_.after(look_again, [this] { begin(); });
        return;
    }
    auto there = make_memory(), back = make_memory();
    if (!there) return fail(there.status().message());
    if (!back) return fail(back.status().message());
    own_->there = std::move(*there);
    own_->back = std::move(*back);
    NodeToMeasure what{
        {own_->there}, bytes, own_->check.work, own_->check.gpus, own_->check.gpus ? gpus_limit : step_limit};
    own_->timer = loop_.after(own_->until - loop_.now(), [this] { fail("it was not over in time"); });
    mover->measure(std::move(what),
                   [this, alive = alive_, number = own_->number](const NodeMeasure &measure) {
                       if (*alive && is_own(number)) on_measured(measure);
                   });
}

void GroupCheck::on_measured(const NodeMeasure &measure) {
    if (Code code = measure.status.code(); code != Code::ok)
        return fail(measure.status.message(), code == Code::corrupt);
    own_->work = std::chrono::microseconds(measure.work_us);
    own_->note = measure.note;
    own_->xxh3 = measure.xxh3;
    own_->sent_at = loop_.now();
    MoveWord word;
    word.kind = Kind::Try;
    word.number = own_->number;
    word.object.data_bytes = bytes;
    word.object.table_xxh3 = measure.xxh3;
    hooks_.send(own_->check.partner, word);
}

/// What the streams say of the end of their time is of the last moment only.
void GroupCheck::fail(const std::string &text, bool unfit) {
    bool late = own_->sent_at > EventLoop::Time(0) && loop_.now() - own_->sent_at >= step_limit;
    std::string why = late ? "32 MiB did not get there and back within 8 s" : text;
    elastic::LocalCheck result{own_->check.run, false, own_->work, {}, why, unfit};
    own_.reset();
    hooks_.done(std::move(result));
}

void GroupCheck::finish() {
    elastic::LocalCheck result{own_->check.run, true, own_->work, loop_.now() - own_->sent_at,
                               own_->note,      false};
    own_.reset();
    hooks_.done(std::move(result));
}

/// All of it is there, and is to come back.
void GroupCheck::on_back(NodeIndex from) {
    receive(from, own_->number, own_->back, own_->xxh3,
            [this, alive = alive_, number = own_->number](const Status &status) {
                if (!*alive || !is_own(number)) return;
                status.ok() ? finish() : fail("on the way back: " + status.message());
            });
}

// ---- the other -----------------------------------------------------------------------------------

void GroupCheck::on_try(NodeIndex from, const MoveWord &word) {
    auto memory = make_memory();
    if (!memory || word.object.data_bytes != bytes)
        return say(from, Kind::TryFailed, word.number,
                   memory.ok() ? "a check of another version" : memory.status().message());
    guest_ = Guest{from, word.number, std::move(*memory)};
    receive(from, word.number, guest_->segment, word.object.table_xxh3,
            [this, alive = alive_, from, number = word.number](const Status &status) {
                if (!*alive || !is_guest(from, number)) return;
                if (status.ok()) return say(from, Kind::TryBack, number);
                guest_.reset();
                say(from, Kind::TryFailed, number, status.message());
            });
}

// ---- both ----------------------------------------------------------------------------------------

void GroupCheck::on_word(NodeIndex from, const MoveWord &word) {
    bool mine = is_own(word.number) && own_->check.partner == from;
    if (word.kind == Kind::Try) return on_try(from, word);
    if (word.kind == Kind::TryAccept) return on_accept(from, word);
    if (word.kind == Kind::TryBack && mine) return on_back(from);
    if (word.kind != Kind::TryFailed) return;
    if (mine) return fail(word.text);
    if (is_guest(from, word.number)) guest_.reset();
}

/// Where a node is both, the numbers of the two may be alike: who has nothing to send is not meant.
void GroupCheck::on_accept(NodeIndex from, const MoveWord &word) {
    bool mine = is_own(word.number) && own_->check.partner == from && !word.asked;
    if (mine)
        return send(from, own_->there, word,
                    [this, alive = alive_, number = word.number](const Status &status) {
                        if (*alive && is_own(number) && !status.ok()) fail(status.message());
                    });
    if (!is_guest(from, word.number) || !word.asked) return;
    send(from, guest_->segment, word,
         [this, alive = alive_, from, number = word.number](const Status &status) {
             if (!*alive || !is_guest(from, number)) return;
             guest_.reset();
             if (!status.ok()) say(from, Kind::TryFailed, number, status.message());
         });
}

void GroupCheck::receive(NodeIndex from, std::uint64_t number, const ArenaSegment &into, std::uint64_t xxh3,
                         std::function<void(Status)> arrived) {
    GroupMover *mover = hooks_.mover();
    auto random = random_bytes(key_bytes + sizeof(std::uint64_t));
    if (!mover || random.empty())
        return arrived(Status(Code::unavailable,
                              mover ? "the system has no random numbers" : "no dlrover-mover runs here"));
    ObjectToReceive object;
    object.segments = {into};
    object.data_bytes = object.table_offset = bytes;
    object.table_xxh3 = xxh3;
    object.parity = true;  // bytes under one checksum
    std::memcpy(&object.transfer, random.data(), sizeof object.transfer);
    object.transfer |= std::uint64_t{1} << 63;  // no copy's
    object.key.assign(random.begin() + sizeof object.transfer, random.end());
    object.from = hooks_.address_of(from);
    object.wait = step_limit;
    MoveWord accept;
    accept.kind = Kind::TryAccept;
    accept.number = number;
    accept.port = mover->port();
    accept.way = by_tcp;
    accept.transfer = object.transfer;
    accept.key = object.key;
    accept.asked = is_own(number) && own_->check.partner == from && into.fd == own_->back.fd;
    auto expecting = [this, alive = alive_, from, accept, arrived](const Status &status) {
        if (!*alive) return;
        status.ok() ? hooks_.send(from, accept) : arrived(Status(status.code(), status.message()));
    };
    mover->receive(std::move(object), expecting, [arrived](const Status &status, std::uint64_t) {
        arrived(status.ok() ? Status() : Status(status.code(), status.message()));
    });
}

void GroupCheck::send(NodeIndex to, const ArenaSegment &segment, const MoveWord &word,
                      std::function<void(Status)> sent) {
    GroupMover *mover = hooks_.mover();
    if (!mover) return sent(Status(Code::unavailable, "no dlrover-mover runs here"));
    ObjectToSend object;
    object.segments = {segment};
    object.bytes = bytes;
    object.transfer = word.transfer;
    object.key = word.key;
    object.address = hooks_.address_of(to);
    object.port = word.port;
    object.way = word.way;
    object.wait = step_limit;
    mover->send(std::move(object),
                [sent = std::move(sent)](Status status, bool) { sent(std::move(status)); });
}

}  // namespace dlrover::daemon
