// SPDX-License-Identifier: Apache-2.0
// Rank 0's node: what is ordered, from whom, and what became of it.
#include <algorithm>
#include <utility>

#include "base/fault.h"
#include "daemon/group_storage.h"
#include "daemon/storage_text.h"
#include "daemon/wall_clock.h"

namespace dlrover::daemon {
namespace {

constexpr EventLoop::Time remind_interval = std::chrono::seconds(1);
/// Files of other nodes show up within the time that network file systems keep what they know of a folder.
constexpr std::chrono::milliseconds visible_limit = std::chrono::seconds(75);

}  // namespace

void GroupStorage::act(elastic::Flusher::Actions actions) {
    for (auto &action : actions) {
        if (auto *begin = std::get_if<elastic::FlushBegin>(&action)) begin_order(*begin);
        if (auto *drop = std::get_if<elastic::FlushDrop>(&action)) drop_order(drop->number);
        if (auto *note = std::get_if<elastic::FlushNote>(&action)) tell(*note);
        if (auto *passed = std::get_if<elastic::FlushPassed>(&action)) tell(*passed);
    }
    schedule();
    if (ending_) check_end();
}

void GroupStorage::schedule() {
    flush_timer_.reset();
    if (!flusher_ || flusher_->deadline() == elastic::Time::max()) return;
    auto wait = std::max(flusher_->deadline() - services_.loop.now(), EventLoop::Time(0));
    flush_timer_ = services_.loop.after(std::min<EventLoop::Time>(wait, std::chrono::hours(1)), [this] {
        if (flusher_) act(flusher_->tick(services_.loop.now()));
    });
}

void GroupStorage::begin_order(const elastic::FlushBegin &begin) {
    flying_ = begin;
    missing_ = {};
    silent_ = {begin.step.nodes.begin(), begin.step.nodes.end()};
    if (begin.end_in)
        hooks_.tell(proto::EventKind::Warning,
                    "The job's time ends in " + std::to_string(begin.end_in->count() / 1000000) +
                        " s: " + step_text(begin.step.id) + " goes to storage now.",
                    begin.step.id, -1);
    fault_point("daemon_before_flush_order");
    remind();
    fault_point("daemon_flush_ordered");
}

/// A word may be lost.
void GroupStorage::remind() {
    remind_timer_.reset();
    if (!flying_ || silent_.empty()) return;
    FlushWord word;
    word.kind = FlushWord::Kind::Begin;
    word.order = flying_->number;
    word.id = flying_->step.id;
    word.world_size = flying_->step.world_size;
    word.ranks = missing_.asked;
    for (NodeIndex node : silent_) send(node, word);
    remind_timer_ = services_.loop.after(remind_interval, [this] { remind(); });
}

/// Words of the round before come twice, too.
void GroupStorage::on_part_over(NodeIndex from, const FlushWord &word) {
    fault_point("daemon_part_told");
    if (word.ranks != missing_.asked || silent_.erase(from) == 0) return;
    if (missing_.why.empty()) missing_.why = word.text;
    if (missing_.asked.empty()) missing_.ranks.insert(word.lacks.begin(), word.lacks.end());
    for (Rank rank : missing_.asked)
        if (std::ranges::find(word.lacks, rank) == word.lacks.end()) missing_.ranks.erase(rank);
    if (silent_.empty()) end_round();
}

/// What a node lacks of its own is asked for from all, once.
void GroupStorage::end_round() {
    if (missing_.ranks.empty()) return complete_order();
    if (!missing_.asked.empty())
        return act(flusher_->lost(services_.loop.now(), flying_->number,
                                  missing_.why + ", and no other node has a whole copy"));
    missing_.asked.assign(missing_.ranks.begin(), missing_.ranks.end());
    silent_ = {flying_->step.nodes.begin(), flying_->step.nodes.end()};
    remind();
}

/// The files meet in the folder: once every node has put its own there, this one's writer looks for them all.
void GroupStorage::complete_order() {
    if (!flying_ || !silent_.empty() || !writer_) return;
    local::CompleteCheckpointT complete;
    complete.order = flying_->number;
    complete.checkpoint = describe(flying_->step.id, flying_->step.world_size);
    complete.wait_ms = static_cast<std::uint32_t>(visible_limit.count());
    fault_point("daemon_before_commit_order");
    services_.port.push(*writer_, std::move(complete));
    fault_point("daemon_commit_ordered");
    silence_.set_owed(true);
}

void GroupStorage::drop_order(std::uint64_t number) {
    if (!flying_ || flying_->number != number) return;
    FlushWord word;
    word.kind = FlushWord::Kind::Drop;
    word.order = number;
    word.id = flying_->step.id;
    for (NodeIndex node : flying_->step.nodes) send(node, word);
    if (writer_) {
        local::CancelOrderT cancel;
        cancel.order = number;
        services_.port.push(*writer_, std::move(cancel));
    }
    flying_.reset();
    silent_.clear();
    remind_timer_.reset();
    silence_.set_owed(writer_owes());
}

void GroupStorage::stop_ordering() {
    if (flying_) drop_order(flying_->number);
    flusher_.reset();
    flush_timer_.reset();
}

void GroupStorage::on_checkpoint_stored(const local::CheckpointStoredT &stored) {
    if (!is_home() || !flying_ || stored.order != flying_->number) return;
    auto now = services_.loop.now();
    if (stored.ok) remark(stored.text);
    fault_point("daemon_before_stored_noted");
    act(stored.ok ? flusher_->done(now, stored.order)
                  : flusher_->failed(now, stored.order, bounded(stored.text)));
    fault_point("daemon_stored_noted");
}

/// What the writer says of a folder that took the checkpoint, once.
void GroupStorage::remark(const std::string &text) {
    if (text.empty() || text == remark_) return;
    remark_ = text;
    hooks_.tell(proto::EventKind::Warning, "Checkpoints on storage: " + bounded(text) + ".", flying_->step.id,
                -1);
}

void GroupStorage::tell(const elastic::FlushNote &note) {
    if (note.ok) {
        stored_ = note.id;
        stored_us_ = wall_clock_us();
        hooks_.tell(proto::EventKind::CheckpointStored,
                    "Checkpoint of " + step_text(note.id) + " is on storage.", note.id, note.took.count());
        return services_.loop.post([this, alive = alive_, id = note.id] {
            if (*alive) hooks_.stored(id);
        });
    }
    hooks_.tell(proto::EventKind::Warning,
                "The checkpoint of " + step_text(note.id) + " is not on storage: " + note.text +
                    (!note.lost ? ". The newest is tried again."
                     : ending_  ? "."
                                : ". A later one goes there instead."),
                note.id, note.took.count());
}

void GroupStorage::tell(const elastic::FlushPassed &passed) {
    std::string what = passed.count == 1 ? "Step " + std::to_string(passed.first.step.value()) + " was"
                                         : std::to_string(passed.count) + " steps from " +
                                               std::to_string(passed.first.step.value()) + " to " +
                                               std::to_string(passed.last.step.value()) + " were";
    hooks_.tell(proto::EventKind::Warning,
                what + " asked for on storage and passed by newer ones before it was free: " +
                    step_text(passed.by) + " goes there instead.",
                passed.by, -1);
}

}  // namespace dlrover::daemon
