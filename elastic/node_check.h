// SPDX-License-Identifier: Apache-2.0
// A check of nodes in pairs: each pair exchanges bytes, and each node may do a piece of work alone. A pair
// shares its time and its failure, so a node is judged by two partners.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "elastic/types.h"

namespace dlrover::elastic {

/// `first` begins.
struct CheckPair {
    NodeIndex first, second;
    friend bool operator==(const CheckPair &, const CheckPair &) = default;
};

/// Each with each, the first node's first.
std::vector<CheckPair> all_pairs(const std::vector<NodeIndex> &nodes);

enum class CheckVerdict : std::uint8_t {
    sound,
    slow,    ///< it takes more than twice as long as the others
    failed,  ///< with every partner, of whom one has done better with somebody else
    unknown  ///< nobody can tell whose fault it is
};

/// What a check has found so far.
class CheckBook {
  public:
    struct Meeting {
        CheckPair pair;
        std::optional<Duration> time;  ///< none: it failed
    };
    void add(const CheckPair &pair, std::optional<Duration> time) { meetings_.push_back({pair, time}); }
    void add_work(NodeIndex node, Duration time) { work_[node] = time; }

    CheckVerdict verdict(NodeIndex node) const;
    /// The shortest; none: none went well.
    std::optional<Duration> exchange_time(NodeIndex node) const;
    /// Of all others' shortest exchanges without this node; none: nobody else has met.
    std::optional<Duration> usual_exchange(NodeIndex node) const;
    std::optional<Duration> work_time(NodeIndex node) const;
    std::optional<Duration> usual_work(NodeIndex node) const;

  private:
    std::optional<Duration> shortest(NodeIndex node, std::optional<NodeIndex> without) const;
    std::vector<Meeting> meetings_;
    std::map<NodeIndex, Duration> work_;
};

}  // namespace dlrover::elastic
