// SPDX-License-Identifier: Apache-2.0
// Whether the nodes of a group share their folder for checkpoints: rank 0's node leaves a mark there, the
// others look for it, and those that do not find it tell that node.
#pragma once

#include <optional>
#include <set>
#include <vector>

#include "elastic/types.h"

namespace dlrover::elastic {

/// A mark may be seen late: its node begins later, or the file system keeps what it knows of a folder.
inline constexpr Duration mark_patience = std::chrono::seconds(20);
/// From one word on a missing mark to the next.
inline constexpr Duration mark_pause = std::chrono::seconds(5);

/// On a node that looks for the mark, again and again.
class MarkSearch {
  public:
    enum class Next { look_again, tell, over };

    explicit MarkSearch(Time begun) : begun_(begun) {}
    /// After a look. tell: and look again; a word may be lost, or come before the mark is there.
    Next looked(Time now, bool found) {
        if (found || told_ == most_words) return Next::over;
        if (now - begun_ < mark_patience + told_ * mark_pause) return Next::look_again;
        ++told_;
        return Next::tell;
    }

  private:
    static constexpr int most_words = 20;
    Time begun_;
    int told_ = 0;
};

/// On rank 0's node: who does not see its mark.
class MarkedFolder {
  public:
    void marked(Time now) {
        if (!since_) since_ = now;
    }
    void not_seen(Time now, NodeIndex node) {
        if (since_ && now - *since_ >= mark_patience) nodes_.insert(node);
    }
    /// Those that nobody was told of yet.
    std::vector<NodeIndex> news() {
        std::vector<NodeIndex> fresh;
        for (NodeIndex node : nodes_)
            if (told_.insert(node).second) fresh.push_back(node);
        return fresh;
    }

  private:
    std::optional<Time> since_;
    std::set<NodeIndex> nodes_, told_;
};

}  // namespace dlrover::elastic
