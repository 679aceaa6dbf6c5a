// SPDX-License-Identifier: Apache-2.0
// Where a daemon's state outlives it. An interface: the real one talks to the keeper process, the twin keeps
// everything in memory (tests, and standalone mode without a keeper).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "common/event_loop.h"

namespace dlrover::daemon {

struct KeptRecord {
    std::string name;
    std::vector<std::uint8_t> value;
    UniqueFd fd;
};

/// Thread: the event loop's.
class RecordKeeper {
  public:
    using Done = std::function<void(Status)>;
    virtual ~RecordKeeper() = default;
    /// Stores or replaces; fd (-1: none) is duplicated. `done` comes later, on the loop, once it is stored.
    virtual void put(const std::string &name, std::vector<std::uint8_t> value, int fd = -1,
                     Done done = {}) = 0;
    /// A name that ends in '*' drops every record with that prefix.
    virtual void drop(const std::string &name) = 0;
    /// `done` comes later, on the loop, once the keeper has answered to everything that it was given so far.
    virtual void when_stored(EventLoop::Task done) = 0;
    /// The daemon serves.
    virtual void ready() = 0;
    /// What is put here is there after this process.
    virtual bool outlives_us() const { return true; }
};

/// Everything in this process.
class MemoryKeeper final : public RecordKeeper {
  public:
    explicit MemoryKeeper(EventLoop &loop) : loop_(loop) {}
    void put(const std::string &name, std::vector<std::uint8_t> value, int fd, Done done) override;
    void drop(const std::string &name) override;
    void when_stored(EventLoop::Task done) override { loop_.post(std::move(done)); }
    void ready() override {}
    bool outlives_us() const override { return false; }
    /// As another daemon would get them.
    std::vector<KeptRecord> copy() const;

  private:
    EventLoop &loop_;
    std::map<std::string, KeptRecord> records_;
};

/// The keeper process at the other end of `link`.
class KeeperClient final : public RecordKeeper {
  public:
    struct Kept {
        std::vector<KeptRecord> records;
        std::uint32_t restarts = 0;  ///< daemons before this one
    };
    /// Asks for everything; blocks, for at most 10 s.
    static Result<Kept> load(int link);

    /// `on_lost`: the keeper is gone; nothing is stored any more.
    KeeperClient(EventLoop &loop, UniqueFd link, std::function<void(Status)> on_lost);
    ~KeeperClient() override;
    void put(const std::string &name, std::vector<std::uint8_t> value, int fd, Done done) override;
    void drop(const std::string &name) override;
    void when_stored(EventLoop::Task done) override;
    void ready() override;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace dlrover::daemon
