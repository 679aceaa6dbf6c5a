// SPDX-License-Identifier: Apache-2.0
#include "elastic/node_check.h"

#include <algorithm>
#include <set>

namespace dlrover::elastic {
namespace {

constexpr int slow_factor = 2;
/// Below this nothing is slow: what else the machines do is longer.
constexpr Duration noise = std::chrono::milliseconds(200);

bool has(const CheckPair &pair, NodeIndex node) {
    return pair.first == node || pair.second == node;
}

NodeIndex other(const CheckPair &pair, NodeIndex node) {
    return pair.first == node ? pair.second : pair.first;
}

std::optional<Duration> median(std::vector<Duration> times) {
    if (times.empty()) return std::nullopt;
    auto middle = times.begin() + static_cast<std::ptrdiff_t>((times.size() - 1) / 2);
    std::nth_element(times.begin(), middle, times.end());
    return *middle;
}

bool is_slow(std::optional<Duration> time, std::optional<Duration> usual) {
    return time && usual && *time > *usual * slow_factor && *time - *usual > noise;
}

}  // namespace

std::vector<CheckPair> all_pairs(const std::vector<NodeIndex> &nodes) {
    std::vector<CheckPair> pairs;
    for (std::size_t i = 0; i < nodes.size(); ++i)
        for (std::size_t j = i + 1; j < nodes.size(); ++j) pairs.push_back({nodes[i], nodes[j]});
    return pairs;
}

std::optional<Duration> CheckBook::shortest(NodeIndex node, std::optional<NodeIndex> without) const {
    std::optional<Duration> best;
    for (const Meeting &m : meetings_)
        if (has(m.pair, node) && m.time && !(without && has(m.pair, *without)))
            best = best ? std::min(*best, *m.time) : *m.time;
    return best;
}

std::optional<Duration> CheckBook::exchange_time(NodeIndex node) const {
    return shortest(node, std::nullopt);
}

std::optional<Duration> CheckBook::usual_exchange(NodeIndex node) const {
    std::set<NodeIndex> others;
    for (const Meeting &m : meetings_)
        for (NodeIndex n : {m.pair.first, m.pair.second})
            if (n != node) others.insert(n);
    std::vector<Duration> times;
    for (NodeIndex n : others)
        if (auto time = shortest(n, node)) times.push_back(*time);
    return median(std::move(times));
}

std::optional<Duration> CheckBook::work_time(NodeIndex node) const {
    auto it = work_.find(node);
    return it == work_.end() ? std::nullopt : std::optional(it->second);
}

std::optional<Duration> CheckBook::usual_work(NodeIndex node) const {
    std::vector<Duration> times;
    for (const auto &[other, time] : work_)
        if (other != node) times.push_back(time);
    return median(std::move(times));
}

CheckVerdict CheckBook::verdict(NodeIndex node) const {
    auto time = exchange_time(node);
    if (is_slow(time, usual_exchange(node)) || is_slow(work_time(node), usual_work(node)))
        return CheckVerdict::slow;
    if (time) return CheckVerdict::sound;
    bool failed = std::ranges::any_of(meetings_, [&](const Meeting &m) {
        return has(m.pair, node) && shortest(other(m.pair, node), node);
    });
    return failed ? CheckVerdict::failed : CheckVerdict::unknown;
}

}  // namespace dlrover::elastic
