// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/notice_table.h"

#include <algorithm>

namespace dlrover::pmix {
namespace {

using Kind = proto::pmix::MessageKind;

Message message_of(Kind kind, proto::Bytes bytes = {}) {
    Message message;
    message.kind = kind;
    message.bytes = std::move(bytes);
    return message;
}

std::size_t bytes_of(const NoticeQuery &query) {
    std::size_t bytes = 0;
    for (const std::string &key : query.keys) bytes += key.size();
    return bytes;
}

}  // namespace

NoticeTable::NoticeTable(const World &world, Board board, Hooks hooks)
    : world_(world), hooks_(std::move(hooks)), board_(std::move(board)) {}

// ---- which board the generation begins with ----

void NoticeTable::begin() {
    begun_ = true;
    if (!is_first()) return hooks_.send({0}, message_of(Kind::Offer, encode_board(board_, false)));
    offers_[0] = board_.version;
    settle_when_all_are_there();
}

void NoticeTable::on_offer(std::uint32_t from, const Message &message) {
    auto board = decode_board(message.bytes);
    if (!is_first() || settled_ || !board) return;
    offers_[from] = board->version;
    settle_when_all_are_there();
}

void NoticeTable::settle_when_all_are_there() {
    if (!begun_ || settled_ || stopped_) return;
    std::uint32_t best = 0;
    for (std::uint32_t place : others()) {
        if (!offers_.contains(place)) return;
        if (offers_[best] < offers_[place]) best = place;
    }
    if (best == 0) return settle();
    if (wanted_from_ == best) return;
    wanted_from_ = best;
    hooks_.send({best}, message_of(Kind::Want));
}

/// Who has the same board already is not sent it.
void NoticeTable::settle() {
    settled_ = true;
    std::vector<std::uint32_t> same, different;
    for (std::uint32_t place : others())
        (offers_[place] == board_.version ? same : different).push_back(place);
    if (!same.empty()) hooks_.send(same, message_of(Kind::Board));
    if (!different.empty()) hooks_.send(different, message_of(Kind::Board, encode_board(board_, true)));
    offers_.clear();
    enter();
}

void NoticeTable::on_board(std::uint32_t from, const Message &message) {
    if (settled_ || from != (is_first() ? wanted_from_ : 0)) return;
    if (!message.bytes.empty()) {
        auto board = decode_board(message.bytes);
        if (!board) return;
        board_ = std::move(*board);
    }
    if (is_first()) return settle();
    settled_ = true;
    enter();
}

void NoticeTable::enter() {
    board_.enter(world_);
    // What is answered goes from the list.
    std::vector<std::uint64_t> numbers;
    for (const auto &[number, request] : open_) numbers.push_back(number);
    for (std::uint64_t number : numbers)
        if (auto it = open_.find(number); it != open_.end()) ask(number, it->second);
}

// ---- requests ----

Status NoticeTable::change(const Change &change, Time deadline, Token token) {
    Request request;
    std::size_t bytes = 0;
    for (const Notice &notice : change.notices) bytes += pmix::bytes_of(notice);
    if (bytes > Board::max_bytes || change.keys.size() > Board::max_notices)
        return Status(Code::resource_exhausted, "more than a board holds");
    request.change = encode_change(change);
    request.bytes = request.change.size();
    request.deadline = deadline;
    request.token = token;
    return take(std::move(request));
}

Status NoticeTable::look_up(NoticeQuery query, Time deadline, Token token) {
    Request request;
    request.bytes = bytes_of(query);
    request.query = std::move(query);
    request.deadline = deadline;
    request.token = token;
    return take(std::move(request));
}

Status NoticeTable::take(Request request) {
    if (stopped_ || lost_.contains(0)) return Status(Code::stale, "the first node is out of reach");
    if (open_.size() >= max_open || open_bytes_ + request.bytes > max_open_bytes)
        return Status(Code::resource_exhausted, "too much is being published and looked up");
    open_bytes_ += request.bytes;
    auto it = open_.emplace(++last_number_, std::move(request)).first;
    if (settled_) ask(it->first, it->second);
    return {};
}

void NoticeTable::ask(std::uint64_t number, const Request &request) {
    Message message = message_of(Kind::Ask, request.change);
    message.number = number;
    if (is_first()) return on_ask(0, message);
    hooks_.send({0}, message);
}

/// A message without a change is a look-up: its answer comes after all that was decided before.
void NoticeTable::on_ask(std::uint32_t from, const Message &message) {
    if (!is_first() || !settled_) return;
    Message changed = message_of(Kind::Changed);
    changed.number = message.number;
    changed.rank = from;
    if (!message.bytes.empty()) {
        auto change = decode_change(message.bytes);
        changed.outcome = change.ok() ? board_.apply(*change, world_.name_space) : Outcome::Unknown;
        if (changed.outcome == Outcome::Done) changed.bytes = message.bytes;
    }
    bool all = !changed.bytes.empty();
    auto to = all ? others() : std::vector<std::uint32_t>{from};
    std::erase(to, 0u);
    if (!to.empty()) hooks_.send(to, changed);
    if (from == 0) answer(message.number, changed.outcome);
    if (all) look_again();
}

void NoticeTable::on_changed(const Message &message) {
    if (is_first() || !settled_) return;
    auto change = message.bytes.empty() ? Result<Change>(Change{}) : decode_change(message.bytes);
    if (!change) return;
    if (!message.bytes.empty()) (void)board_.apply(*change, world_.name_space);
    if (message.rank == world_.place) answer(message.number, message.outcome);
    if (!message.bytes.empty()) look_again();
}

void NoticeTable::answer(std::uint64_t number, Outcome outcome) {
    auto it = open_.find(number);
    if (it == open_.end()) return;
    if (!it->second.change.empty()) return finish(it, outcome, {});
    it->second.asked = true;
    look(number);
}

/// true: that one is over.
bool NoticeTable::look(std::uint64_t number) {
    auto it = open_.find(number);
    if (it == open_.end() || !it->second.asked) return false;
    const NoticeQuery &query = it->second.query;
    auto found = board_.find(query);
    std::size_t wanted = query.wanted == 0 ? query.keys.size() : std::min(query.wanted, query.keys.size());
    if (query.wait && found.size() < wanted) return false;
    finish(it, found.empty() ? Outcome::Unknown : Outcome::Done, found);
    return true;
}

void NoticeTable::look_again() {
    std::vector<std::uint64_t> numbers;
    for (const auto &[number, request] : open_)
        if (request.asked) numbers.push_back(number);
    for (std::uint64_t number : numbers) look(number);
}

void NoticeTable::finish(Requests::iterator it, Outcome outcome, const std::vector<Notice> &found) {
    Token token = it->second.token;
    open_bytes_ -= it->second.bytes;
    open_.erase(it);
    hooks_.told(token, outcome, found);
}

// ---- from another node, and what ends them ----

void NoticeTable::receive(std::uint32_t from, const Message &message) {
    if (stopped_) return;
    switch (message.kind) {
        case Kind::Offer:
            return on_offer(from, message);
        case Kind::Want:
            return hooks_.send({from}, message_of(Kind::Board, encode_board(board_, true)));
        case Kind::Board:
            return on_board(from, message);
        case Kind::Ask:
            return on_ask(from, message);
        case Kind::Changed:
            if (from == 0) on_changed(message);
            return;
        default:
            return;
    }
}

template <typename Is>
void NoticeTable::end_those(Outcome outcome, Is is) {
    std::vector<std::uint64_t> numbers;
    for (const auto &[number, request] : open_)
        if (is(request)) numbers.push_back(number);
    for (std::uint64_t number : numbers)
        if (auto it = open_.find(number); it != open_.end()) finish(it, outcome, {});
}

void NoticeTable::tick(Time now) {
    end_those(Outcome::TimedOut, [now](const Request &request) { return request.deadline <= now; });
}

Time NoticeTable::next_tick() const {
    Time next = Time::max();
    for (const auto &[number, request] : open_) next = std::min(next, request.deadline);
    return next;
}

void NoticeTable::lose(std::uint32_t place) {
    if (!lost_.insert(place).second) return;
    if (place == 0) return end_those(Outcome::Lost, [](const Request &) { return true; });
    if (wanted_from_ == place) wanted_from_.reset();
    if (is_first()) settle_when_all_are_there();
}

void NoticeTable::stop() {
    stopped_ = true;
    end_those(Outcome::Lost, [](const Request &) { return true; });
}

std::vector<std::uint32_t> NoticeTable::others() const {
    auto all = world_.all_places();
    std::erase_if(all, [&](std::uint32_t place) { return place == world_.place || lost_.contains(place); });
    return all;
}

}  // namespace dlrover::pmix
