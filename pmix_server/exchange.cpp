// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/exchange.h"

#include <xxhash.h>

#include <algorithm>
#include <utility>

namespace dlrover::pmix {
namespace {

using Kind = proto::pmix::MessageKind;

/// Stands for these ranks (none: all), on each node alike.
std::uint64_t number_of(const std::vector<std::uint32_t> &ranks, const std::string &purpose) {
    std::uint64_t number = ranks.empty() ? 0 : XXH3_64bits(ranks.data(), ranks.size() * sizeof ranks[0]);
    return purpose.empty() ? number : XXH3_64bits_withSeed(purpose.data(), purpose.size(), number);
}

}  // namespace

Exchange::Exchange(World world, Board board, Hooks hooks)
    : world_(std::move(world)),
      hooks_(std::move(hooks)),
      courier_({hooks_.send, [this](std::uint32_t from, auto bytes) { on_message(from, bytes); }}),
      fences_(world_.place,
              {[this](const auto &to, const Message &message) { post(to, message); }, hooks_.finish}),
      modex_({[this](std::uint32_t to, const Message &message) { post({to}, message); }, hooks_.finish,
              hooks_.look_up}),
      notices_(world_, std::move(board),
               {[this](const auto &to, const Message &message) { post(to, message); }, hooks_.told}) {}

void Exchange::begin(Time now) {
    now_ = now;
    // The others' first words go to the first place, whose daemon drops them where it is the last to begin.
    for (std::uint32_t place = 1; world_.place == 0 && place < world_.nodes.size(); ++place)
        courier_.greet(place);
    notices_.begin();
    settle();
}

Status Exchange::fence(Time now, Fence fence) {
    now_ = now;
    FenceTable::Join join;
    if (!fence.all && (fence.ranks.empty() || fence.ranks.back() >= world_.size()))
        return Status(Code::invalid_argument, "a fence of ranks that there are not");
    // All ranks, said one by one, are the same ranks.
    bool all = fence.all || fence.ranks.size() == world_.size();
    if (all) fence.ranks.clear();
    join.places = all ? world_.all_places() : world_.places_of(fence.ranks);
    if (std::ranges::find(join.places, world_.place) == join.places.end())
        return Status(Code::invalid_argument, "a fence without ranks of this node");
    join.ranks = number_of(fence.ranks, fence.purpose);
    join.data = std::move(fence.data);
    join.deadline = fence.deadline;
    join.token = fence.token;
    Status status = fences_.join(std::move(join));
    settle();
    return status;
}

Status Exchange::modex(Time now, std::uint32_t rank, Time deadline, Token token) {
    now_ = now;
    auto place = world_.place_of(rank);
    if (!place || *place == world_.place)
        return Status(Code::invalid_argument, "data of a rank that is on no other node");
    if (stopped_) return Status(Code::stale, "the generation ends");
    Status status = modex_.ask(*place, rank, deadline, token);
    settle();
    return status;
}

Status Exchange::change(Time now, const Change &change, Time deadline, Token token) {
    now_ = now;
    Status status = notices_.change(change, deadline, token);
    settle();
    return status;
}

Status Exchange::find(Time now, NoticeQuery query, Time deadline, Token token) {
    now_ = now;
    Status status = notices_.look_up(std::move(query), deadline, token);
    settle();
    return status;
}

Status Exchange::announce(Time now, const Announcement &announcement) {
    now_ = now;
    if (stopped_) return Status(Code::stale, "the generation ends");
    Message message;
    message.kind = Kind::Event;
    message.bytes = encode_announcement(announcement);
    auto others = world_.all_places();
    std::erase(others, world_.place);
    if (!allowance_.take(now, message.bytes.size() * others.size()))
        return Status(Code::resource_exhausted, "more events than may be sent");
    post(others, message);
    settle();
    return {};
}

void Exchange::answer(Time now, std::uint32_t to, std::uint64_t number, Outcome outcome, proto::Bytes data) {
    now_ = now;
    if (!stopped_) modex_.answer(to, number, outcome, std::move(data));
    settle();
}

void Exchange::receive(Time now, std::uint32_t from, const Parcel &parcel) {
    now_ = now;
    if (from < world_.nodes.size() && from != world_.place && !stopped_) courier_.receive(now, from, parcel);
    settle();
}

void Exchange::post(const std::vector<std::uint32_t> &to, const Message &message) {
    auto letter = std::make_shared<const proto::Bytes>(encode_message(message));
    for (std::uint32_t place : to)
        if (!courier_.send(now_, place, letter).ok()) choked_.push_back(place);
}

void Exchange::on_message(std::uint32_t from, std::span<const std::uint8_t> bytes) {
    auto message = decode_message(bytes);
    if (!message) return choked_.push_back(from);  // of another version: nothing can be done with it
    if (message->kind == Kind::Contribute || message->kind == Kind::Result)
        fences_.receive(from, std::move(*message));
    else if (message->kind == Kind::Event)
        on_event(from, *message);
    else if (message->kind >= Kind::Offer)
        notices_.receive(from, *message);
    else
        modex_.receive(from, std::move(*message));
}

/// Nobody speaks for ranks of another node.
void Exchange::on_event(std::uint32_t from, const Message &message) {
    auto announcement = decode_announcement(message.bytes);
    if (announcement.ok() && world_.place_of(announcement->rank) == from) hooks_.announced(*announcement);
}

void Exchange::settle() {
    while (!choked_.empty())
        for (std::uint32_t place : std::exchange(choked_, {})) {
            fences_.lose(place);
            modex_.lose(place);
            notices_.lose(place);
        }
    fences_.flush();
}

void Exchange::lose(Time now, std::uint32_t place) {
    now_ = now;
    choked_.push_back(place);
    settle();
}

void Exchange::stop() {
    stopped_ = true;
    fences_.stop();
    modex_.stop();
    notices_.stop();
    settle();
}

void Exchange::tick(Time now) {
    now_ = now;
    if (stopped_) return;
    courier_.tick(now);
    fences_.tick(now);
    modex_.tick(now);
    notices_.tick(now);
    settle();
}

Time Exchange::next_tick() const {
    if (stopped_) return Time::max();
    return std::min({courier_.next_tick(), fences_.next_tick(), modex_.next_tick(), notices_.next_tick()});
}

}  // namespace dlrover::pmix
