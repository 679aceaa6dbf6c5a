// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/modex_table.h"

#include <algorithm>

namespace dlrover::pmix {

using Kind = proto::pmix::MessageKind;

Status ModexTable::ask(std::uint32_t place, std::uint32_t rank, Time deadline, Token token) {
    if (open_.size() >= max_open)
        return Status(Code::resource_exhausted, "too many requests for data of ranks");
    Message message;
    message.kind = Kind::Fetch;
    message.number = ++last_number_;
    message.rank = rank;
    open_[message.number] = {place, token, deadline};
    hooks_.send(place, message);
    return {};
}

void ModexTable::answer(std::uint32_t to, std::uint64_t number, Outcome outcome, proto::Bytes data) {
    Message message;
    message.kind = Kind::Data;
    message.number = number;
    message.outcome = data.size() > max_data_bytes ? Outcome::TooLarge : outcome;
    if (message.outcome == Outcome::Done) message.bytes = std::move(data);
    hooks_.send(to, message);
}

void ModexTable::receive(std::uint32_t from, Message message) {
    if (message.kind == Kind::Fetch) return hooks_.look_up(from, message.number, message.rank);
    auto it = open_.find(message.number);
    if (message.kind != Kind::Data || it == open_.end() || it->second.place != from) return;
    Token token = it->second.token;
    open_.erase(it);
    hooks_.finish(token, message.outcome, message.bytes);
}

template <typename Is>
void ModexTable::end_those(Outcome outcome, Is is) {
    std::vector<Token> ended;
    std::erase_if(open_, [&](const auto &entry) {
        if (!is(entry.second)) return false;
        ended.push_back(entry.second.token);
        return true;
    });
    for (Token token : ended) hooks_.finish(token, outcome, {});
}

void ModexTable::tick(Time now) {
    end_those(Outcome::TimedOut, [now](const Request &request) { return request.deadline <= now; });
}

Time ModexTable::next_tick() const {
    Time next = Time::max();
    for (const auto &[number, request] : open_) next = std::min(next, request.deadline);
    return next;
}

void ModexTable::lose(std::uint32_t place) {
    end_those(Outcome::Lost, [place](const Request &request) { return request.place == place; });
}

void ModexTable::stop() {
    end_those(Outcome::Lost, [](const Request &) { return true; });
}

}  // namespace dlrover::pmix
