// SPDX-License-Identifier: Apache-2.0
#include "daemon/storage_silence.h"

#include <algorithm>
#include <utility>

namespace dlrover::daemon {

EventLoop::Time StorageSilence::lasted() const {
    return since_ ? loop_.now() - *since_ : EventLoop::Time(0);
}

void StorageSilence::set_owed(bool owed) {
    if (owed == since_.has_value()) return;
    if (owed)
        since_ = loop_.now();
    else
        since_.reset();
    watch();
}

void StorageSilence::on_answer() {
    if (since_) since_ = loop_.now();
    if (auto began = std::exchange(told_, std::nullopt)) tell_later(loop_.now() - *began, true);
    watch();
}

void StorageSilence::watch() {
    timer_.reset();
    if (!since_ || told_) return;
    auto wait = std::max(*since_ + limit_ - loop_.now(), EventLoop::Time(0));
    timer_ = loop_.after(wait, [this] {
        told_ = since_;
        tell_later(lasted(), false);
    });
}

void StorageSilence::tell_later(EventLoop::Time lasted, bool over) {
    telling_ = loop_.after(EventLoop::Time(0), [this, lasted, over] { tell_(lasted, over); });
}

}  // namespace dlrover::daemon
