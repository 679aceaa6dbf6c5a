// SPDX-License-Identifier: Apache-2.0
#include "elastic/seal_tally.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

namespace dlrover::elastic {

void SealTally::add(const Seal &seal, std::uint32_t max_world, NodeIndex holder) {
    if (seal.world_size == 0 || seal.world_size > max_world || seal.rank.value() >= seal.world_size) return;
    Complete id{seal.step, seal.generation};
    auto it = std::find_if(steps_.begin(), steps_.end(),
                           [&](const Step &s) { return s.id == id && s.world_size == seal.world_size; });
    if (it == steps_.end()) {
        steps_.push_back(Step{id, seal.world_size, 0, 0, false, {}, {}});
        it = steps_.end() - 1;
        it->held.resize(seal.world_size);
        it->holders.resize(std::size_t{seal.world_size} * wanted_);
    }
    it->asked = it->asked || seal.to_storage;
    std::uint8_t &held = it->held[seal.rank.value()];
    auto first = it->holders.begin() + std::ptrdiff_t{seal.rank.value()} * wanted_, last = first + held;
    if (held >= wanted_ || std::find(first, last, holder) != last) return;
    *last = holder;
    if (held++ == 0) ++it->count;
    if (held >= wanted_) ++it->safe_count;
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

std::optional<CheckpointId> SealTally::newest_copied() const {
    std::optional<CheckpointId> best;
    for (const Step &s : steps_)
        if (s.count >= s.world_size && std::ranges::any_of(s.held, [](auto nodes) { return nodes > 1; }))
            best = std::max(best, std::optional(CheckpointId{s.id.generation, s.id.step}));
    return best;
}

std::optional<CheckpointId> SealTally::most_copied() const {
    std::tuple<std::uint8_t, CheckpointId> best{1, {}};
    for (const Step &s : steps_)
        if (s.count >= s.world_size)
            best = std::max(best, {*std::ranges::min_element(s.held), {s.id.generation, s.id.step}});
    return std::get<0>(best) > 1 ? std::optional(std::get<1>(best)) : std::nullopt;
}

std::size_t SealTally::held(const CheckpointId &id) const {
    const Step *s = find(id);
    return s == nullptr ? 0 : std::accumulate(s->held.begin(), s->held.end(), std::size_t{0});
}

std::optional<CheckpointId> SealTally::best_of(TrainStep step, std::uint32_t size) const {
    const Step *best = nullptr;
    auto merit = [&](const Step &s) {
        return std::tuple(s.world_size == size, *std::ranges::min_element(s.held), s.id.generation);
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
    return {s->holders.data() + std::size_t{rank.value()} * wanted_, s->held[rank.value()]};
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
                                               std::optional<TrainStep> complete, Rules rules) const {
    std::map<TrainStep, const Step *> open;
    std::vector<TrainStep> newest;
    for (const Step &s : steps_) {
        if (s.id.generation != generation || (complete && s.id.step <= *complete)) continue;
        open[s.id.step] = &s;
        newest.resize(std::max<std::size_t>(newest.size(), s.world_size));
        for (std::uint32_t r = 0; r < s.world_size; ++r)
            if (s.held[r] > 0) newest[r] = std::max(newest[r], s.id.step);
    }
    std::optional<TrainStep> below;
    for (const auto &[step, s] : open) {
        bool passed = false;
        for (std::uint32_t r = 0; r < s->world_size; ++r)
            passed = passed || (s->held[r] == 0 && (rules.early || newest[r] > step));
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
