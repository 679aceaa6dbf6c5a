// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/board.h"

#include <algorithm>

namespace dlrover::pmix {
namespace {

/// Whether nobody could tell the one from the other.
bool is_same_scope(const Notice &a, const Notice &b) {
    if (a.range != b.range) return false;
    switch (a.range) {
        case NoticeRange::Group:
            return true;
        case NoticeRange::Namespace:
            return a.name_space == b.name_space;
        case NoticeRange::Node:
            return a.node == b.node;
        case NoticeRange::Process:
            return a.name_space == b.name_space && a.rank == b.rank;
    }
    return false;
}

bool is_within(NoticeRange range, const Notice &notice, const Asker &asker) {
    switch (range) {
        case NoticeRange::Group:
            return true;
        case NoticeRange::Namespace:
            return notice.name_space == asker.name_space;
        case NoticeRange::Node:
            return notice.node == asker.node;
        case NoticeRange::Process:
            return notice.name_space == asker.name_space && notice.rank == asker.rank;
    }
    return false;
}

bool is_of(const Notice &notice, const Asker &asker) {
    return is_within(NoticeRange::Process, notice, asker);
}

}  // namespace

Outcome Board::apply(const Change &change, const std::string &name_space) {
    Outcome outcome = change.take_down ? take_down(change, name_space) : post(change, name_space);
    if (outcome == Outcome::Done) ++version.changes;
    return outcome;
}

const Notice *Board::same_scope(const Notice &notice) const {
    auto it = notices_.find(notice.key);
    if (it == notices_.end()) return nullptr;
    auto found =
        std::ranges::find_if(it->second, [&](const auto &other) { return is_same_scope(other, notice); });
    return found == it->second.end() ? nullptr : &*found;
}

Outcome Board::post(const Change &change, const std::string &name_space) {
    std::size_t bytes = bytes_, count = size_;
    for (auto it = change.notices.begin(); it != change.notices.end(); ++it) {
        auto again = std::any_of(change.notices.begin(), it, [&](const Notice &other) {
            return other.key == it->key && is_same_scope(other, *it);
        });
        const Notice *former = same_scope(*it);
        if (again || (former && former->name_space == name_space)) return Outcome::Duplicate;
        bytes += bytes_of(*it) - (former ? bytes_of(*former) : 0);
        count += former ? 0 : 1;
    }
    if (bytes > max_bytes || count > max_notices) return Outcome::TooLarge;
    for (const Notice &notice : change.notices) {
        remove([&](const Notice &other) { return other.key == notice.key && is_same_scope(other, notice); });
        put(notice);
    }
    return Outcome::Done;
}

Outcome Board::take_down(const Change &change, const std::string &name_space) {
    std::size_t removed = remove([&](const Notice &notice) {
        bool named = std::ranges::find(change.keys, notice.key) != change.keys.end();
        bool left_over = notice.name_space != name_space;
        bool his = is_of(notice, change.by) || (named && left_over);
        return his && (named || change.keys.empty()) && (!change.range || *change.range == notice.range);
    });
    return removed > 0 || change.keys.empty() ? Outcome::Done : Outcome::Unknown;
}

std::vector<Notice> Board::find(const NoticeQuery &query) const {
    std::vector<Notice> found;
    for (const std::string &key : query.keys) {
        auto it = notices_.find(key);
        if (it == notices_.end()) continue;
        const Notice *best = nullptr;  // the one that is meant for the fewest
        for (const Notice &notice : it->second)
            if (is_within(notice.range, notice, query.by) && is_within(query.range, notice, query.by) &&
                (best == nullptr || best->range < notice.range))
                best = &notice;
        if (best != nullptr) found.push_back(*best);
    }
    return found;
}

void Board::enter(const World &world) {
    remove([&](const Notice &notice) {
        bool bound = notice.range == NoticeRange::Namespace || notice.range == NoticeRange::Process;
        bool away = notice.range == NoticeRange::Node &&
                    std::ranges::find(world.nodes, notice.node) == world.nodes.end();
        return notice.brief || bound || away;
    });
    version = {world.generation, 0};
}

bool Board::put(Notice notice) {
    std::size_t bytes = bytes_of(notice);
    if (size_ >= max_notices || bytes_ + bytes > max_bytes || same_scope(notice) != nullptr) return false;
    bytes_ += bytes;
    ++size_;
    auto &bucket = notices_[notice.key];
    bucket.push_back(std::move(notice));
    return true;
}

template <typename Is>
std::size_t Board::remove(Is is) {
    std::size_t before = size_;
    for (auto &[key, bucket] : notices_)
        std::erase_if(bucket, [&](const Notice &notice) {
            if (!is(notice)) return false;
            bytes_ -= bytes_of(notice);
            --size_;
            return true;
        });
    std::erase_if(notices_, [](const auto &entry) { return entry.second.empty(); });
    return before - size_;
}

void Board::each(const std::function<void(const Notice &)> &visit) const {
    for (const auto &[key, bucket] : notices_)
        for (const Notice &notice : bucket) visit(notice);
}

}  // namespace dlrover::pmix
