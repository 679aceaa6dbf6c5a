// SPDX-License-Identifier: Apache-2.0
// Whether the group's nodes share their folder for checkpoints. Seen at the first checkpoint otherwise, which
// may be hours later.
#include <utility>

#include "daemon/group_storage.h"

namespace dlrover::daemon {
namespace {

// So that all nodes without the mark have said so, and one line names them.
constexpr EventLoop::Time look_pause = std::chrono::seconds(2),
                          apart_delay = elastic::mark_pause + look_pause;

}  // namespace

/// A world is in force. Each node looks once for the mark of rank 0's, or makes it.
void GroupStorage::test_folder() {
    bool makes = home_ == facts_.self;
    if (world_nodes_.size() < 2 || marks_ == home_ || (marks_ && !makes)) return;
    marks_ = home_;
    search_.reset();
    if (!makes) search_.emplace(services_.loop.now());
    ask_for_mark();
}

void GroupStorage::ask_for_mark() {
    test_timer_.reset();
    bool makes = marks_ == facts_.self;
    if (!marks_ || !writer_ || ending_ || (!makes && !search_)) return;
    local::TestFolderT test;
    test.order = ++test_order_;
    test.node = hooks_.name_of(*marks_);
    test.make = makes;
    services_.port.push(*writer_, std::move(test));
}

void GroupStorage::on_folder_tested(const local::FolderTestedT &tested) {
    if (tested.order != test_order_) return;
    auto now = services_.loop.now();
    if (marks_ == facts_.self) {
        if (tested.ok) marked_.marked(now);
        return;
    }
    if (!search_) return;
    auto next = search_->looked(now, tested.ok);
    if (next == elastic::MarkSearch::Next::over) return search_.reset();
    if (next == elastic::MarkSearch::Next::tell) {
        FlushWord word;
        word.kind = FlushWord::Kind::Trouble;
        word.order = no_order;
        word.text = tested.text;
        send(*marks_, std::move(word));
    }
    test_timer_ = services_.loop.after(look_pause, [this] { ask_for_mark(); });
}

/// Where it is one node's fault the others say nothing; else they all say it at about the same time.
void GroupStorage::on_mark_not_seen(NodeIndex from) {
    marked_.not_seen(services_.loop.now(), from);
    if (!apart_timer_) apart_timer_ = services_.loop.after(apart_delay, [this] { tell_apart(); });
}

void GroupStorage::tell_apart() {
    apart_timer_.reset();
    std::string names;
    for (NodeIndex node : marked_.news()) names += (names.empty() ? "" : ", ") + hooks_.name_of(node);
    if (names.empty()) return;
    std::string text =
        facts_.options.ckpt_dir + " is not the same folder on all nodes: what " + facts_.node +
        " has put there is not seen on " + names +
        ", so no checkpoint will be complete there; give --dlrover-ckpt-dir a folder of a file "
        "system that all nodes share, or have it mounted on the nodes that lack it";
    hooks_.say_on_terminal("warning: " + text);
    hooks_.tell(proto::EventKind::Warning, text + ".", {}, -1);
}

}  // namespace dlrover::daemon
