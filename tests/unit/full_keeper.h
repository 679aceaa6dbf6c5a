// SPDX-License-Identifier: Apache-2.0
// The keeper in memory, which can be full for some kinds of records.
#pragma once

#include "daemon/record_keeper.h"

namespace dlrover::daemon::test {

class FullKeeper final : public RecordKeeper {
  public:
    explicit FullKeeper(EventLoop &loop) : loop_(loop), records_(loop) {}
    void put(const std::string &name, std::vector<std::uint8_t> value, int fd, Done done) override {
        if (refused.empty() || !name.starts_with(refused))
            return records_.put(name, std::move(value), fd, std::move(done));
        if (done)
            loop_.post([done = std::move(done)] { done(Status(Code::resource_exhausted, "it is full")); });
    }
    void drop(const std::string &name) override { records_.drop(name); }
    void when_stored(EventLoop::Task done) override { records_.when_stored(std::move(done)); }
    void ready() override {}
    std::vector<KeptRecord> copy() const { return records_.copy(); }
    /// Records whose names begin so.
    std::size_t count(const std::string &prefix) const {
        std::size_t n = 0;
        for (const auto &record : copy()) n += record.name.starts_with(prefix);
        return n;
    }

    std::string refused;  ///< what begins so is not taken; empty: everything is

  private:
    EventLoop &loop_;
    MemoryKeeper records_;
};

}  // namespace dlrover::daemon::test
