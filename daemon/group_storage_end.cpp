// SPDX-License-Identifier: Apache-2.0
// The group ends: for how long it waits for the last checkpoint.
#include <algorithm>

#include "base/units.h"
#include "daemon/group_storage.h"

namespace dlrover::daemon {
namespace {

constexpr EventLoop::Time end_interval = std::chrono::milliseconds(200);

}  // namespace

void GroupStorage::end() {
    if (ending_) return;
    ending_ = true;
    ending_since_ = home_heard_ = services_.loop.now();
    if (is_home()) act(flusher_->hurry(services_.loop.now()));
    check_end();
}

/// Whether nothing of this node may still be wanted on storage.
bool GroupStorage::idle_here() const {
    return !home_ || services_.arena.seals().empty();
}

/// A writer that has died is back soon, but not when the agent that had started it is gone.
bool GroupStorage::is_deserted() const {
    auto since = std::max(ending_since_, writer_gone_);
    return !writer_ && services_.loop.now() - since >= services_.settings.storage.end_patience;
}

/// Storage that is slow is waited for, not what has said nothing since the end began.
bool GroupStorage::is_hanging() const {
    auto since = silence_.since();
    return since &&
           services_.loop.now() - std::max(ending_since_, *since) >= services_.settings.storage.end_silence;
}

std::string GroupStorage::reason_to_end() const {
    auto now = services_.loop.now();
    if (now - ending_since_ >= services_.settings.storage.end_limit)
        return "The last checkpoint was not on storage in time: the group ends without it.";
    if (is_home())
        return is_deserted() || is_hanging()
                   ? "The last checkpoint is not on storage: " + why_not_text() + "."
                   : "";
    if (now - home_heard_ >= services_.settings.storage.end_patience)
        return "The node of rank 0 is silent: the group ends here without the last checkpoint.";
    return {};
}

std::string GroupStorage::why_not_text() const {
    if (!is_hanging()) return "dlrover-writer no longer runs on " + facts_.node;
    return facts_.options.ckpt_dir + " has not answered dlrover-writer on " + facts_.node + " for " +
           format_duration(silence_.lasted());
}

void GroupStorage::check_end() {
    end_timer_.reset();
    if (over_) return;
    if (is_home()) give_up_silent();
    if (over_) return;
    bool done = is_home() ? flusher_->settled() : idle_here();
    std::string reason = reason_to_end();
    if (!done && !reason.empty()) hooks_.tell(proto::EventKind::Warning, reason, {}, -1);
    if (done || !reason.empty()) return say_over();
    if (!is_home()) ask_home();
    if (!is_home() && (is_deserted() || is_hanging()) && part_ && !part_->stored)
        answer_home(FlushWord::Kind::Gone, why_not_text());
    end_timer_ = services_.loop.after(end_interval, [this] { check_end(); });
}

/// A node that is lost after the group's end is missed by nobody else; every other one asks all the time. Of
/// its ranks, which are not known, the others may have copies.
void GroupStorage::give_up_silent() {
    if (!flying_) return;
    FlushWord word;
    word.ranks = missing_.asked;
    for (std::uint32_t rank = 0; rank < flying_->step.world_size; ++rank) word.lacks.emplace_back(rank);
    auto waiting = silent_;
    for (NodeIndex node : waiting) {
        auto heard = heard_.find(node);
        auto since = heard == heard_.end() ? ending_since_ : std::max(ending_since_, heard->second);
        if (node == facts_.self || services_.loop.now() - since < services_.settings.storage.end_patience)
            continue;
        word.text = hooks_.name_of(node) + " is silent";
        on_part_over(node, word);
        if (!flying_) return;
        word.ranks = missing_.asked;
    }
}

void GroupStorage::ask_home() {
    FlushWord word;
    word.kind = FlushWord::Kind::Ask;
    send(*home_, word);
}

void GroupStorage::say_over() {
    if (over_) return;
    over_ = true;
    end_timer_.reset();
    if (is_home()) {
        FlushWord word;
        word.kind = FlushWord::Kind::Over;
        for (NodeIndex node : world_nodes_)
            if (node != facts_.self) send(node, word);
    }
    stop_ordering();
    release_part();
    services_.loop.post([this, alive = alive_] {
        if (*alive) hooks_.over();
    });
}

}  // namespace dlrover::daemon
