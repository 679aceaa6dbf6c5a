// SPDX-License-Identifier: Apache-2.0
#include "writer/object_progress.h"

#include <algorithm>

namespace dlrover::writer {

void ObjectProgress::add(std::uint64_t bytes) {
    std::uint64_t written = written_.fetch_add(bytes) + bytes;
    auto now = Clock::now();
    auto told = told_.load();
    // One of the threads that come at the same time says it.
    if (now - told < pause || !told_.compare_exchange_strong(told, now)) return;
    proto::local::ObjectProgressT word;
    word.rank = rank_.value();
    word.bytes = std::min(written, bytes_);  // what lies between chunks in the file is none of the object's
    outbox_.put(ticket_, word);
}

}  // namespace dlrover::writer
