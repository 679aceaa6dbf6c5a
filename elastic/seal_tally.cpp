// SPDX-License-Identifier: Apache-2.0
#include "elastic/seal_tally.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

namespace dlrover::elastic {

namespace {

/// How many of the units can be counted each on a node of its own: whoever finds its node taken asks the
/// other to move on.
class Spread {
  public:
    explicit Spread(std::span<const RebuildPart> units) : units_(units) {
        std::set<std::uint32_t> numbers;
        for (const RebuildPart &part : units_) numbers.insert(part.unit);
        for (std::uint32_t unit : numbers) {
            asked_.clear();
            count_ += take(unit);
        }
        all_ = numbers.size();
    }
    std::size_t units() const { return all_; }
    std::size_t apart() const { return count_; }

  private:
    bool take(std::uint32_t unit) {
        for (const RebuildPart &part : units_) {
            if (part.unit != unit || !asked_.insert(part.node).second) continue;
            auto taken = taken_by_.find(part.node);
            if (taken != taken_by_.end() && !take(taken->second)) continue;
            taken_by_[part.node] = unit;
            return true;
        }
        return false;
    }

    std::span<const RebuildPart> units_;
    std::map<NodeIndex, std::uint32_t> taken_by_;
    std::set<NodeIndex> asked_;
    std::size_t count_ = 0, all_ = 0;
};

constexpr std::size_t most_losses_tried = 2;  // more are told from units on nodes of their own alone

/// Whether `size` different units are left whichever nodes are lost. Tries each.
bool outlives_any(std::span<const RebuildPart> units, std::size_t size, std::size_t losses) {
    std::set<std::uint32_t> numbers;
    std::set<NodeIndex> nodes;
    for (const RebuildPart &part : units) {
        numbers.insert(part.unit);
        nodes.insert(part.node);
    }
    if (numbers.size() < size) return false;
    if (losses == 0) return true;
    return std::ranges::all_of(nodes, [&](NodeIndex lost) {
        std::vector<RebuildPart> left(units.begin(), units.end());
        std::erase_if(left, [&](const RebuildPart &part) { return part.node == lost; });
        return outlives_any(left, size, losses - 1);
    });
}

}  // namespace

SealTally::Step *SealTally::find(const Complete &id, std::uint32_t world_size) {
    auto it = std::find_if(steps_.begin(), steps_.end(),
                           [&](const Step &s) { return s.id == id && s.world_size == world_size; });
    return it == steps_.end() ? nullptr : &*it;
}

SealTally::Step &SealTally::step_of(const Complete &id, std::uint32_t world_size) {
    if (Step *known = find(id, world_size)) return *known;
    Step &s = steps_.emplace_back();
    s.id = id;
    s.world_size = world_size;
    s.held.resize(world_size);
    s.outlives.resize(world_size);
    s.safe.resize(world_size);
    s.holders.resize(std::size_t{world_size} * places_);
    return s;
}

void SealTally::add(const Seal &seal, std::uint32_t max_world, NodeIndex holder) {
    if (seal.world_size == 0 || seal.world_size > max_world || seal.rank.value() >= seal.world_size) return;
    Step &s = step_of({seal.step, seal.generation}, seal.world_size);
    s.asked = s.asked || seal.to_storage;
    std::uint8_t &held = s.held[seal.rank.value()];
    auto first = s.holders.begin() + std::ptrdiff_t{seal.rank.value()} * places_, last = first + held;
    if (held >= places_ || std::find(first, last, holder) != last) return;
    *last = holder;
    ++held;
    weigh_with_rows(s, seal.rank);
}

void SealTally::remove(const Seal &seal, NodeIndex holder) {
    Step *s = find({seal.step, seal.generation}, seal.world_size);
    if (s == nullptr || seal.rank.value() >= s->world_size) return;
    std::uint8_t &held = s->held[seal.rank.value()];
    auto first = s->holders.begin() + std::ptrdiff_t{seal.rank.value()} * places_, last = first + held;
    auto left = std::remove(first, last, holder);
    if (left == last) return;
    --held;
    weigh_with_rows(*s, seal.rank);
}

/// An object's holders have changed.
void SealTally::weigh_with_rows(Step &s, Rank rank) const {
    weigh(s, rank);
    if (s.rows_of.empty()) return;
    for (std::size_t row : s.rows_of[rank.value()]) weigh_with_ranks(s, s.rows[row]);
}

void SealTally::weigh_with_ranks(Step &s, CodedRow &row) const {
    weigh(s, row);
    for (Rank rank : row.ranks) weigh(s, rank);
}

void SealTally::add(const Parity &parity, std::uint32_t max_world, NodeIndex holder, bool in_force) {
    auto fits = [&](Rank rank) { return rank.value() < parity.world_size; };
    if (parity.world_size == 0 || parity.world_size > max_world || parity.ranks.empty()) return;
    if (!std::ranges::all_of(parity.ranks, fits)) return;
    Step &s = step_of({parity.id.step, parity.id.generation}, parity.world_size);
    CodedRow &row = row_of(s, parity);
    RebuildPart part{static_cast<std::uint32_t>(parity.ranks.size()) + parity.index, holder};
    row.in_force = row.in_force || in_force;
    s.asked = s.asked || parity.to_storage;
    if (std::ranges::find(row.parities, part) == row.parities.end()) row.parities.push_back(part);
    weigh_with_ranks(s, row);
}

void SealTally::remove(const Parity &parity, NodeIndex holder) {
    Step *s = find({parity.id.step, parity.id.generation}, parity.world_size);
    CodedRow *row = s == nullptr || parity.ranks.empty() ? nullptr : find_row(*s, parity);
    if (row == nullptr) return;
    std::erase(row->parities,
               RebuildPart{static_cast<std::uint32_t>(parity.ranks.size()) + parity.index, holder});
    weigh_with_ranks(*s, *row);
}

SealTally::CodedRow *SealTally::find_row(Step &s, const Parity &parity) {
    if (parity.ranks.front().value() >= s.rows_of.size()) return nullptr;
    for (std::size_t i : s.rows_of[parity.ranks.front().value()])
        if (s.rows[i].ranks == parity.ranks) return &s.rows[i];
    return nullptr;
}

SealTally::CodedRow &SealTally::row_of(Step &s, const Parity &parity) {
    s.rows_of.resize(s.world_size);
    if (CodedRow *known = find_row(s, parity)) return *known;
    for (Rank rank : parity.ranks) s.rows_of[rank.value()].push_back(s.rows.size());
    s.rows.push_back({parity.ranks, {}});
    return s.rows.back();
}

std::span<const NodeIndex> SealTally::holders_of(const Step &s, Rank rank) const {
    return {s.holders.data() + std::size_t{rank.value()} * places_, s.held[rank.value()]};
}

std::vector<RebuildPart> SealTally::units_of(const Step &s, const CodedRow &row) const {
    std::vector<RebuildPart> units;
    for (std::uint32_t i = 0; i < row.ranks.size(); ++i)
        for (NodeIndex node : holders_of(s, row.ranks[i])) units.push_back({i, node});
    units.insert(units.end(), row.parities.begin(), row.parities.end());
    return units;
}

void SealTally::weigh(const Step &s, CodedRow &row) const {
    auto units = units_of(s, row);
    Spread spread(units);
    std::size_t size = row.ranks.size();
    row.outlives = 0;
    if (spread.units() < size) return;
    row.outlives = static_cast<std::uint8_t>(spread.apart() > size ? spread.apart() - size + 1 : 1);
    // Units with several holders, such as what was made again, can be worth more than that.
    if (units.size() == spread.units()) return;
    while (row.outlives < wanted_ && row.outlives <= most_losses_tried &&
           outlives_any(units, size, row.outlives))
        ++row.outlives;
}

void SealTally::weigh(Step &s, Rank rank) const {
    std::uint32_t r = rank.value();
    std::uint8_t outlives = s.held[r];
    bool safe = outlives >= wanted_;
    for (std::size_t i = 0; !s.rows_of.empty() && i < s.rows_of[r].size(); ++i) {
        const CodedRow &row = s.rows[s.rows_of[r][i]];
        outlives = std::max(outlives, row.outlives);
        // As long as it has to be made again, that may need what is not of this world's rows.
        safe = safe || (s.held[r] > 0 && row.in_force && row.outlives >= wanted_);
    }
    s.count += (outlives > 0) - (s.outlives[r] > 0);
    s.safe_count += safe - s.safe[r];
    s.outlives[r] = outlives;
    s.safe[r] = safe;
}

const SealTally::Step *SealTally::find(const CheckpointId &id) const {
    for (const Step &s : steps_)
        if (s.id == Complete{id.step, id.generation} && s.count >= s.world_size) return &s;
    return nullptr;
}

bool SealTally::is_safe(const Step &s, Rules rules) {
    if (s.count < s.world_size) return false;
    return s.safe_count >= s.world_size || (rules.safe_early && s.safe_count > 0);
}

bool SealTally::safe(const CheckpointId &id, Rules rules) const {
    const Step *s = find(id);
    return s != nullptr && is_safe(*s, rules);
}

std::optional<CheckpointId> SealTally::newest_safe(Rules rules) const {
    std::optional<CheckpointId> best;
    for (const Step &s : steps_)
        if (is_safe(s, rules)) best = std::max(best, std::optional(CheckpointId{s.id.generation, s.id.step}));
    return best;
}

std::optional<CheckpointId> SealTally::newest_complete() const {
    std::optional<CheckpointId> best;
    for (const Step &s : steps_)
        if (s.count >= s.world_size)
            best = std::max(best, std::optional(CheckpointId{s.id.generation, s.id.step}));
    return best;
}

std::optional<CheckpointId> SealTally::newest_copied() const {
    std::optional<CheckpointId> best;
    for (const Step &s : steps_)
        if (s.count >= s.world_size && std::ranges::any_of(s.outlives, [](auto nodes) { return nodes > 1; }))
            best = std::max(best, std::optional(CheckpointId{s.id.generation, s.id.step}));
    return best;
}

std::optional<CheckpointId> SealTally::newest_outliving() const {
    std::optional<CheckpointId> best;
    for (const Step &s : steps_)
        if (s.count >= s.world_size && *std::ranges::min_element(s.outlives) >= wanted_)
            best = std::max(best, std::optional(CheckpointId{s.id.generation, s.id.step}));
    return best;
}

std::optional<CheckpointId> SealTally::most_copied() const {
    std::tuple<std::uint8_t, CheckpointId> best{1, {}};
    for (const Step &s : steps_)
        if (s.count >= s.world_size)
            best = std::max(best, {*std::ranges::min_element(s.outlives), {s.id.generation, s.id.step}});
    return std::get<0>(best) > 1 ? std::optional(std::get<1>(best)) : std::nullopt;
}

std::size_t SealTally::held(const CheckpointId &id) const {
    const Step *s = find(id);
    if (s == nullptr) return 0;
    std::size_t places = std::accumulate(s->held.begin(), s->held.end(), std::size_t{0});
    for (const CodedRow &row : s->rows) places += row.in_force ? row.parities.size() : 0;
    return places;
}

std::optional<CheckpointId> SealTally::best_of(TrainStep step, std::uint32_t size) const {
    const Step *best = nullptr;
    auto merit = [&](const Step &s) {
        return std::tuple(s.world_size == size, *std::ranges::min_element(s.outlives), s.id.generation);
    };
    for (const Step &s : steps_)
        if (s.id.step == step && s.count >= s.world_size && (best == nullptr || merit(*best) < merit(s)))
            best = &s;
    return best ? std::optional(CheckpointId{best->id.generation, best->id.step}) : std::nullopt;
}

std::uint32_t SealTally::world_size(const CheckpointId &id) const {
    const Step *s = find(id);
    return s == nullptr ? 0 : s->world_size;
}

std::span<const NodeIndex> SealTally::holders(const CheckpointId &id, Rank rank) const {
    const Step *s = find(id);
    if (s == nullptr || rank.value() >= s->world_size) return {};
    return holders_of(*s, rank);
}

SealTally::Row SealTally::decodable(const CheckpointId &id, Rank rank) const {
    const Step *s = find(id);
    if (s == nullptr || s->rows_of.empty() || rank.value() >= s->world_size) return {};
    const CodedRow *best = nullptr;
    for (std::size_t i : s->rows_of[rank.value()])
        if (s->rows[i].outlives > (best ? best->outlives : 0)) best = &s->rows[i];
    return best ? Row{best->ranks, units_of(*s, *best)} : Row{};
}

std::size_t SealTally::mixed_count(const std::vector<Step> &steps, const Step &like) {
    std::vector<bool> all(like.world_size, false);
    for (const Step &s : steps)
        for (std::uint32_t r = 0; s.id.step == like.id.step && r < std::min(s.world_size, like.world_size);
             ++r)
            if (s.held[r] > 0) all[r] = true;
    return static_cast<std::size_t>(std::count(all.begin(), all.end(), true));
}

std::optional<SealTally::Complete> SealTally::newest(Rules rules) const {
    std::optional<Complete> best;
    for (const Step &s : steps_) {
        std::size_t count = rules.mix_generations ? mixed_count(steps_, s) : s.count;
        if (count < s.world_size) continue;
        if (!best || (rules.oldest ? s.id < *best : *best < s.id)) best = s.id;
    }
    return best;
}

std::optional<CheckpointId> SealTally::newest_asked(Rules rules) const {
    std::optional<CheckpointId> best;
    for (const Step &s : steps_)
        if (s.asked && (s.count >= s.world_size || rules.asked_early))
            best = std::max(best, std::optional(CheckpointId{s.id.generation, s.id.step}));
    return best;
}

std::optional<TrainStep> SealTally::void_below(const GenerationId &generation,
                                               std::optional<TrainStep> complete, std::span<const Skip> skips,
                                               Rules rules) const {
    std::map<TrainStep, const Step *> open;
    std::vector<TrainStep> next;  // by rank: before that nothing comes any more
    auto raise = [&](Rank rank, TrainStep step) {
        if (rank.value() < next.size()) next[rank.value()] = std::max(next[rank.value()], step);
    };
    for (const Step &s : steps_) {
        if (s.id.generation != generation || (complete && s.id.step <= *complete)) continue;
        open[s.id.step] = &s;
        next.resize(std::max<std::size_t>(next.size(), s.world_size));
        for (std::uint32_t r = 0; r < s.world_size; ++r)
            if (s.held[r] > 0) raise(Rank(r), s.id.step);
    }
    for (const Skip &skip : skips) raise(skip.rank, TrainStep(skip.step.value() + 1));
    std::optional<TrainStep> below;
    for (const auto &[step, s] : open) {
        bool passed = false;
        for (std::uint32_t r = 0; r < s->world_size; ++r)
            passed = passed || (s->held[r] == 0 && (rules.early || next[r] > step));
        if (!passed) break;
        below = TrainStep(step.value() + 1);
    }
    return below;
}

void SealTally::drop_void(const GenerationId &generation, TrainStep below) {
    std::erase_if(steps_, [&](const Step &s) {
        return s.id.generation == generation && s.id.step < below && s.count < s.world_size;
    });
}

void SealTally::drop_older_than(TrainStep step) {
    std::erase_if(steps_, [&](const Step &s) { return s.id.step < step; });
}

}  // namespace dlrover::elastic
