// SPDX-License-Identifier: Apache-2.0
#include "daemon/group_parity.h"

#include <algorithm>
#include <utility>

#include "daemon/seal_bounds.h"

namespace dlrover::daemon {
namespace {

constexpr EventLoop::Time tick_interval = std::chrono::milliseconds(250);
/// Since the last sign that a part is coming.
constexpr EventLoop::Time part_limit = std::chrono::seconds(30);
/// Of one part, each followed by a longer pause; of the whole.
constexpr std::uint32_t max_failures = 5, max_attempts = 2;
/// Slower is stuck.
constexpr std::uint64_t slowest_bytes_per_ms = 2000;
/// What a parity's record has to say of its objects: it has to fit into one packet of the keeper's.
constexpr std::size_t max_told_bytes = 128u << 10;

std::uint64_t bytes_of(const local::SealT &object) {
    return object.table_offset + object.table_bytes;
}

std::chrono::milliseconds fold_limit(std::uint64_t bytes) {
    return std::chrono::seconds(30) +
           std::chrono::milliseconds(static_cast<std::int64_t>(bytes / slowest_bytes_per_ms));
}

/// Of what the record of a parity says of one object.
std::uint64_t told_bytes(const local::SealT &object) {
    return noted_bytes(object) + 160;
}

std::uint16_t place_of(const std::vector<Rank> &ranks, Rank rank) {
    return static_cast<std::uint16_t>(std::ranges::find(ranks, rank) - ranks.begin());
}

std::string step_of(Rank rank, const CheckpointId &id) {
    return "step " + std::to_string(id.step.value()) + " of rank " + std::to_string(rank.value());
}

}  // namespace

GroupParity::GroupParity(Services services, Hooks hooks) : services_(services), hooks_(std::move(hooks)) {}

GroupParity::~GroupParity() {
    *alive_ = false;
}

void GroupParity::later(std::function<void()> task) {
    services_.loop.post([alive = alive_, task = std::move(task)] {
        if (*alive) task();
    });
}

void GroupParity::tell_later(Done done, Status status) {
    later([done = std::move(done), told = std::make_shared<Status>(std::move(status))] {
        done(std::move(*told));
    });
}

Status GroupParity::check_mover() const {
    if (mover_ != nullptr && mover_->ready()) return {};
    return Status(Code::unavailable, "dlrover-mover does not run here");
}

void GroupParity::stop() {
    for (const auto &[place, row] : std::map(rows_)) end_row(row, "a new world is being prepared");
    for (const auto &[rank, making] : std::exchange(making_, {})) {
        making->over = true;
        if (making->order != 0 && mover_ != nullptr) mover_->cancel(making->order);
        if (making->order == 0 && making->on_record) release(*making);
    }
    protecting_.reset();
    part_.reset();
    made_ = to_make_ = 0;
}

void GroupParity::on_world(Part part) {
    stop();
    part_ = std::move(part);
    for (const elastic::Rebuild &rebuild : part_->world.rebuilds)
        if (rebuild.node == part_->self) begin_making(rebuild);
}

void GroupParity::protect(const CheckpointId &id) {
    protecting_ = id;
    for (const auto &[place, row] : std::map(rows_))
        if (row->id != id) end_row(row, "another step gets its parities now");
}

void GroupParity::tick() {
    auto now = services_.loop.now();
    for (const auto &[rank, making] : std::map(making_))
        if (making->order == 0 && now - making->heard_at >= part_limit)
            end_making(making, making->trouble.empty() ? "nothing was heard of a part" : making->trouble);
        else
            advance(making);
}

void GroupParity::release(Sum &sum) {
    if (sum.holder != 0) (void)services_.arena.abort(sum.place, sum.slot, sum.holder).ok();
    sum.holder = 0;
}

// ---- parities of other nodes' objects ----

std::optional<std::pair<elastic::CodedRow, std::uint32_t>> GroupParity::row_here(
    Rank rank, const CheckpointId &id) const {
    if (!coded() || !is_rank(rank)) return std::nullopt;
    auto row = elastic::row_of(part_->world, part_->nodes, id, rank);
    if (!row) return std::nullopt;
    auto holder = std::ranges::find(row->holders, part_->self);
    if (holder == row->holders.end()) return std::nullopt;
    auto index = static_cast<std::uint32_t>(holder - row->holders.begin());
    return std::pair(std::move(*row), index);
}

bool GroupParity::is_whole(Rank place, const CheckpointId &id, std::uint32_t index,
                           const std::vector<Rank> &ranks) const {
    auto parity = services_.arena.parity(place, id);
    return parity && parity->index == index && parity->ranks == ranks;
}

GroupParity::Need GroupParity::need_of(Rank rank, const CheckpointId &id) const {
    auto here = row_here(rank, id);
    if (!here) return Need::none;
    const auto &[row, index] = *here;
    Rank place = parity_place(index, row.ranks.front());
    if (is_whole(place, id, index, row.ranks)) return Need::done;
    auto open = rows_.find(place);
    bool folded = open != rows_.end() && open->second->id == id && open->second->folded.contains(rank);
    return folded ? Need::done : Need::open;
}

std::set<Rank> GroupParity::places_of(const CheckpointId &id) const {
    std::set<Rank> places;
    for (const elastic::CodedRow &row : elastic::rows_of(part_->world, part_->nodes, id)) {
        auto holder = std::ranges::find(row.holders, part_->self);
        if (holder == row.holders.end()) continue;
        places.insert(
            parity_place(static_cast<std::uint32_t>(holder - row.holders.begin()), row.ranks.front()));
    }
    return places;
}

std::set<Rank> GroupParity::expected_places() const {
    if (!coded()) return {};
    auto places = places_of({part_->world.id, TrainStep(0)});
    if (!places.empty()) places.insert(passage);
    return places;
}

std::set<Rank> GroupParity::places() const {
    std::set<Rank> places{passage};
    if (!coded()) return places;
    const elastic::World &world = part_->world;
    places.merge(places_of({world.id, TrainStep(0)}));
    places.merge(places_of({world.restore_generation, world.restore_step.value_or(TrainStep(0))}));
    return places;
}

/// The one that this object belongs to.
Result<GroupParity::RowPointer> GroupParity::open_row(const MoveWord &offer) {
    auto here = row_here(offer.rank, offer.id);
    if (!here || protecting_ != offer.id)
        return Status(Code::stale, "it does not belong into a parity here now");
    bool waits = false;
    Rank place = parity_place(here->second, here->first.ranks.front());
    if (auto open = rows_.find(place); open != rows_.end())
        waits = std::ranges::any_of(open->second->waiting,
                                    [&](const Waiting &part) { return part.offer.rank == offer.rank; });
    if (waits || need_of(offer.rank, offer.id) == Need::done)
        return Status(Code::stale, "it is in its parity already");
    auto &row = rows_[place];
    if (!row) {
        row = std::make_shared<Row>();
        row->place = place;
        row->id = offer.id;
        row->index = here->second;
        row->ranks = here->first.ranks;
        row->world_size = offer.world_size;
    }
    std::uint64_t told = told_bytes(offer.object);
    for (const auto &[rank, object] : row->folded) told += told_bytes(object);
    for (const Waiting &part : row->waiting) told += told_bytes(part.offer.object);
    if (told > max_told_bytes)
        return Status(Code::resource_exhausted,
                      "the ledgers of a row's objects have more than 128 KiB together");
    if (row->sealing || row->world_size != offer.world_size)
        return Status(Code::stale, "its parity is made of others");
    return row;
}

Status GroupParity::open(const MoveWord &offer) {
    auto row = open_row(offer);
    if (!row) return row.take_status();
    if ((*row)->holder != 0) return {};
    Status begun = begin(*row, bytes_of(offer.object));
    if (!begun.ok()) end_row(*row, begun.message());
    return begun;
}

void GroupParity::take_push(const MoveWord &offer, std::vector<ArenaSegment> from, Done done) {
    auto row = open_row(offer);
    if (!row) return tell_later(std::move(done), row.take_status());
    (*row)->waiting.push_back({offer, std::move(from), std::move(done)});
    advance(*row);
}

void GroupParity::advance(const RowPointer &row) {
    if (row->over || row->sealing || row->order != 0 || row->waiting.empty()) return;
    if (row->on_record) return fold(row);
    if (row->holder != 0) return;
    Status begun = begin(row, bytes_of(row->waiting.front().offer.object));
    if (!begun.ok()) end_row(row, begun.message());
}

Status GroupParity::begin(const RowPointer &row, std::uint64_t bytes) {
    ckpt::Holder holder = next_holder();
    auto stored = [this, alive = alive_, row](const Status &status) {
        if (!*alive) return;
        row->on_record = true;
        if (row->over) return release(*row);
        status.ok() ? advance(row) : end_row(row, status.message());
    };
    auto place = services_.arena.begin_copy(row->place, holder, row->id, bytes, stored);
    if (!place) return place.take_status();
    if (!place->has_value()) return Status(Code::resource_exhausted, "no slot is free for a parity");
    row->holder = holder;
    row->slot = (*place)->slot;
    if ((*place)->overwrites) later([this] { hooks_.changed(); });
    return {};
}

void GroupParity::fold(const RowPointer &row) {
    const Waiting &part = row->waiting.front();
    Status mover = check_mover();
    if (!mover.ok()) return end_row(row, mover.message());
    PartToFold order;
    order.bytes = bytes_of(part.offer.object);
    auto place =
        services_.arena.extend(row->place, row->slot, row->holder, std::max(order.bytes, row->bytes));
    if (!place) return end_row(row, place.status().message());
    order.into = place->segments;
    order.from = part.from;
    order.sum_bytes = row->bytes;
    order.data = static_cast<std::uint16_t>(row->ranks.size());
    order.target = static_cast<std::uint16_t>(row->ranks.size() + row->index);
    order.source = place_of(row->ranks, part.offer.rank);
    order.last = row->folded.size() + 1 == row->ranks.size();
    order.wait = fold_limit(order.bytes);
    row->order =
        mover_->fold(std::move(order), [this, alive = alive_, row](const Status &status, std::uint64_t xxh3) {
            if (*alive) on_folded(row, status, xxh3);
        });
}

/// Added twice it would be gone again: a sum that may have it, or not, is worth nothing.
void GroupParity::on_folded(const RowPointer &row, const Status &status, std::uint64_t xxh3) {
    row->order = 0;
    Waiting part = std::move(row->waiting.front());
    row->waiting.pop_front();
    if (row->over || !status.ok()) {
        std::string why = status.ok() ? "its parity is not wanted any more" : status.message();
        tell_later(std::move(part.done), Status(Code::unavailable, why));
        return row->over ? release(*row) : end_row(row, why);
    }
    row->bytes = std::max(row->bytes, bytes_of(part.offer.object));
    row->folded[part.offer.rank] = part.offer.object;
    tell_later(std::move(part.done), {});
    if (row->folded.size() == row->ranks.size()) return seal(row, xxh3);
    advance(row);
}

void GroupParity::seal(const RowPointer &row, std::uint64_t xxh3) {
    auto parity = std::make_shared<ParityObject>();
    parity->index = row->index;
    parity->ranks = row->ranks;
    for (Rank rank : row->ranks) parity->objects.push_back(row->folded.at(rank));
    local::SealT seal;
    seal.train_step = row->id.step.value();
    seal.slot = static_cast<std::uint16_t>(row->slot.value());
    seal.data_bytes = seal.table_offset = row->bytes;
    seal.table_xxh3 = xxh3;
    row->sealing = true;
    Status sealed = services_.arena.seal(
        row->place, row->holder, row->id.generation, row->world_size, std::move(seal),
        [this, alive = alive_, row](const Status &) {
            if (*alive) on_sealed(row);
        },
        std::move(parity));
    if (sealed.ok()) return;
    row->sealing = false;
    end_row(row, sealed.message());
}

/// On record, or it could not be put there: then its members offer their objects once more.
void GroupParity::on_sealed(const RowPointer &row) {
    auto it = rows_.find(row->place);
    if (it != rows_.end() && it->second == row) rows_.erase(it);
    row->over = true;
    later([this] { hooks_.changed(); });
}

void GroupParity::end_row(const RowPointer &row, const std::string &why) {
    auto it = rows_.find(row->place);
    if (it != rows_.end() && it->second == row) rows_.erase(it);
    row->over = true;
    std::deque<Waiting> waiting = std::exchange(row->waiting, {});
    if (row->order != 0) {
        row->waiting.push_back(std::move(waiting.front()));
        waiting.pop_front();
        if (mover_ != nullptr) mover_->cancel(row->order);
    }
    for (Waiting &part : waiting) tell_later(std::move(part.done), Status(Code::unavailable, why));
    if (row->order == 0 && row->on_record && !row->sealing) release(*row);
}

// ---- objects that are made again ----

void GroupParity::begin_making(const elastic::Rebuild &rebuild) {
    const elastic::World &world = part_->world;
    auto making = std::make_shared<Making>();
    making->place = rebuild.rank;
    making->rebuild = rebuild;
    making->id = {world.restore_generation, world.restore_step.value_or(TrainStep(0))};
    if (services_.arena.holds(rebuild.rank, making->id)) return;
    making->heard_at = services_.loop.now();
    making->parts = rebuild.parts;
    std::stable_partition(making->parts.begin(), making->parts.end(),
                          [&](const auto &part) { return part.node == part_->self; });
    for (const auto &part : making->parts) making->units.push_back(static_cast<std::uint16_t>(part.unit));
    ++to_make_;
    making_[rebuild.rank] = making;
    Status found = prepare(making);
    later([this, making, why = found.message()] {
        if (making->over) return;
        why.empty() ? advance(making) : end_making(making, why);
    });
}

/// What it is has to be known from a parity that is here.
Status GroupParity::prepare(const MakingPointer &making) {
    const auto &row = making->rebuild.row;
    for (const elastic::RebuildPart &part : making->parts) {
        if (part.node != part_->self || part.unit < row.size()) continue;
        auto index = static_cast<std::uint32_t>(part.unit - row.size());
        making->own = parity_place(index, row.front());
        if (!is_whole(making->own, making->id, index, row)) continue;
        making->world_size = services_.arena.world_size(making->own, making->id);
        auto parity = services_.arena.parity(making->own, making->id);
        making->object = parity->objects.at(place_of(row, making->rebuild.rank));
        return {};
    }
    return Status(Code::not_found, "this node does not have the parity that it was to be made of");
}

Rank GroupParity::part_at(const Making &making) const {
    const auto &row = making.rebuild.row;
    std::uint32_t unit = making.parts[making.next].unit;
    if (unit < row.size()) return row[unit];
    return parity_place(static_cast<std::uint32_t>(unit - row.size()), row.front());
}

void GroupParity::advance(const MakingPointer &making) {
    if (making->over || making->order != 0 || making->next >= making->parts.size()) return;
    auto now = services_.loop.now();
    if (now < making->ask_at) return;
    making->ask_at = now + tick_interval;
    if (making->holder == 0) return begin(making);
    if (!making->on_record) return;
    const elastic::RebuildPart &part = making->parts[making->next];
    if (part.node == part_->self || services_.arena.holds(part_at(*making), making->id))
        return fold_own(making);
    making->asked = true;
    hooks_.ask(part.node, part_at(*making), making->id);
}

void GroupParity::begin(const MakingPointer &making) {
    ckpt::Holder holder = next_holder();
    auto stored = [this, alive = alive_, making](const Status &status) {
        if (!*alive) return;
        making->on_record = true;
        if (making->over) return release(*making);
        making->ask_at = {};
        status.ok() ? advance(making) : end_making(making, status.message());
    };
    auto place =
        services_.arena.begin_copy(making->place, holder, making->id, bytes_of(making->object), stored);
    if (!place) return part_failed(making, place.status().message());
    if (!place->has_value()) return part_failed(making, "no slot is free");
    making->holder = holder;
    making->slot = (*place)->slot;
    making->segments = (*place)->segments;
    if ((*place)->overwrites) later([this] { hooks_.changed(); });
}

void GroupParity::fold_own(const MakingPointer &making) {
    Rank part = part_at(*making);
    auto object = services_.arena.begin_read(part, making->id);
    if (!object) return end_making(making, object.status().message());
    fold(making, object->place.segments, bytes_of(object->seal),
         [this, part, slot = object->place.slot](const Status &) { services_.arena.end_read(part, slot); });
}

void GroupParity::fold(const MakingPointer &making, const std::vector<ArenaSegment> &from,
                       std::uint64_t bytes, Done done) {
    Status mover = check_mover();
    if (!mover.ok()) {
        part_failed(making, mover.message());
        return tell_later(std::move(done), std::move(mover));
    }
    const auto &object = making->object;
    PartToFold order;
    order.into = making->segments;
    order.from = from;
    order.sum_bytes = making->bytes;
    order.bytes = std::min(bytes, bytes_of(object));  // what is behind it is of longer ones
    order.data = static_cast<std::uint16_t>(making->rebuild.row.size());
    order.target = place_of(making->rebuild.row, making->rebuild.rank);
    order.source = making->units[making->next];
    order.given = making->units;
    order.last = making->next + 1 == making->parts.size();
    if (order.last)
        order.object = {making->id,          making->world_size, making->rebuild.rank, object.data_bytes,
                        object.table_offset, object.table_bytes, object.table_xxh3};
    order.wait = fold_limit(order.bytes);
    making->heard_at = services_.loop.now();
    std::uint64_t added = order.bytes;
    making->order = mover_->fold(
        std::move(order),
        [this, alive = alive_, making, added, done = std::move(done)](const Status &status, std::uint64_t) {
            if (!*alive) return;
            making->bytes = std::max(making->bytes, added);
            done(Status(status.code(), status.message()));
            on_folded(making, status);
        });
}

void GroupParity::on_folded(const MakingPointer &making, const Status &status) {
    making->order = 0;
    making->heard_at = services_.loop.now();
    making->ask_at = {};
    if (making->over) return release(*making);
    if (!status.ok()) {
        bool last = making->next + 1 == making->parts.size();
        making->next = 0;
        making->bytes = 0;
        bool worthless = last && ++making->attempts >= max_attempts;
        if (!worthless && ++making->begun_anew < max_failures) return part_failed(making, status.message());
        if (!worthless) return end_making(making, status.message());
        // One of the parts is not what it should be. Without this one the next world tries others.
        services_.arena.drop_parity(making->own, making->id);
        later([this] { hooks_.changed(); });
        return end_making(making, status.message());
    }
    if (++making->next > making->farthest) {
        making->farthest = making->next;
        making->failures = 0;
    }
    if (making->next < making->parts.size()) return advance(making);
    local::SealT seal = making->object;
    seal.slot = static_cast<std::uint16_t>(making->slot.value());
    Status sealed =
        services_.arena.seal(making->place, making->holder, making->id.generation, making->world_size,
                             std::move(seal), [this, alive = alive_, making](const Status &stored) {
                                 if (*alive) on_made(making, stored);
                             });
    making->holder = 0;
    if (!sealed.ok()) end_making(making, sealed.message());
}

void GroupParity::on_made(const MakingPointer &making, const Status &status) {
    if (making->over) return later([this] { hooks_.changed(); });
    if (!status.ok()) return end_making(making, status.message());
    making->over = true;
    making_.erase(making->place);
    ++made_;
    later([this, rank = making->place] { hooks_.rebuilt(rank, {}); });
}

void GroupParity::part_failed(const MakingPointer &making, const std::string &text) {
    making->trouble = text;
    making->asked = false;
    making->ask_at = services_.loop.now() + tick_interval * (1 << making->failures);
    if (++making->failures >= max_failures) end_making(making, text);
}

void GroupParity::end_making(const MakingPointer &making, const std::string &why) {
    making->over = true;
    making_.erase(making->place);
    if (making->order != 0 && mover_ != nullptr) mover_->cancel(making->order);
    if (making->order == 0 && making->on_record) release(*making);
    std::string text = step_of(making->place, making->id) + " could not be made of its parts again: " + why;
    later([this, rank = making->place, text] { hooks_.rebuilt(rank, Status(Code::unavailable, text)); });
}

bool GroupParity::rebuilds(Rank rank, const CheckpointId &id) const {
    auto it = making_.find(rank);
    return it != making_.end() && it->second->id == id;
}

GroupParity::MakingPointer GroupParity::find(NodeIndex from, Rank part, const CheckpointId &id) const {
    for (const auto &[rank, making] : making_) {
        bool waits = making->on_record && making->order == 0 && making->next < making->parts.size();
        if (waits && making->id == id && making->parts[making->next].node == from && part_at(*making) == part)
            return making;
    }
    return nullptr;
}

bool GroupParity::asks_for(NodeIndex from, Rank part, const CheckpointId &id) const {
    return find(from, part, id) != nullptr;
}

void GroupParity::take_part(NodeIndex node, const MoveWord &offer, std::vector<ArenaSegment> from,
                            Done done) {
    auto making = find(node, offer.rank, offer.id);
    if (!making) return tell_later(std::move(done), Status(Code::stale, "nobody waits for it any more"));
    fold(making, from, bytes_of(offer.object), std::move(done));
}

void GroupParity::on_part_failed(NodeIndex from, Rank part, const std::string &text) {
    for (const auto &[rank, making] : std::map(making_)) {
        if (making->asked && find(from, part, making->id) == making) part_failed(making, text);
    }
}

void GroupParity::on_part_waits(NodeIndex from, Rank part) {
    for (const auto &[rank, making] : making_)
        if (find(from, part, making->id) == making) making->heard_at = services_.loop.now();
}

}  // namespace dlrover::daemon
