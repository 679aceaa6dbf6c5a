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

void add_three(std::vector<CheckPair> &pairs, NodeIndex a, NodeIndex b, NodeIndex c) {
    for (CheckPair pair : {CheckPair{a, b}, CheckPair{a, c}, CheckPair{b, c}}) pairs.push_back(pair);
}

}  // namespace

std::vector<CheckPair> first_round(const std::vector<NodeIndex> &nodes) {
    std::vector<CheckPair> pairs;
    std::size_t count = nodes.size(), at = 0;
    if (count < 2) return pairs;
    for (; at + 3 < count || at + 2 == count; at += 2) pairs.push_back({nodes[at], nodes[at + 1]});
    if (at + 3 == count) add_three(pairs, nodes[at], nodes[at + 1], nodes[at + 2]);
    return pairs;
}

bool CheckBook::have_met(NodeIndex a, NodeIndex b) const {
    return std::ranges::any_of(meetings_, [&](const Meeting &m) { return has(m.pair, a) && has(m.pair, b); });
}

std::optional<Duration> CheckBook::shortest(NodeIndex node, std::optional<NodeIndex> without) const {
    std::optional<Duration> best;
    for (const Meeting &m : meetings_)
        if (has(m.pair, node) && m.time && !(without && has(m.pair, *without)))
            best = best ? std::min(*best, *m.time) : *m.time;
    return best;
}

/// The last two left may have met: then each takes the other's partner of an earlier pair.
void CheckBook::part(std::vector<CheckPair> &pairs) const {
    CheckPair &last = pairs.back();
    for (auto pair = pairs.begin(); have_met(last.first, last.second) && pair + 1 != pairs.end(); ++pair) {
        if (have_met(last.first, pair->second) || have_met(pair->first, last.second)) continue;
        std::swap(last.second, pair->second);
    }
}

std::vector<CheckPair> CheckBook::second_round(const std::vector<NodeIndex> &nodes) const {
    std::vector<CheckPair> pairs;
    if (nodes.size() < 4) return pairs;
    auto time = [&](NodeIndex n) { return exchange_time(n).value_or(Duration::max()); };
    std::vector<NodeIndex> order = nodes;
    std::ranges::stable_sort(order, {}, time);
    const std::vector<NodeIndex> fastest = order;
    auto stranger = [&](const std::vector<NodeIndex> &among, NodeIndex to) {
        return std::ranges::find_if(among, [&](NodeIndex n) { return n != to && !have_met(n, to); });
    };
    while (order.size() >= 2) {
        NodeIndex slow = order.back();
        order.pop_back();
        auto fast = stranger(order, slow);
        if (fast == order.end()) fast = order.begin();
        pairs.push_back({*fast, slow});
        order.erase(fast);
        part(pairs);
    }
    if (order.empty()) return pairs;
    auto fast = stranger(fastest, order.front());
    if (fast != fastest.end()) pairs.push_back({*fast, order.front()});
    return pairs;
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
