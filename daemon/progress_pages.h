// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>

#include "daemon/local_port.h"
#include "daemon/memory_budget.h"
#include "daemon/record_keeper.h"
#include "daemon/records.h"
#include "elastic/types.h"

namespace dlrover::daemon {

/// The progress pages of a group's local ranks: one a rank and generation, written by the worker.
class ProgressPages {
  public:
    /// `uid`: whose share of `budget` the pages are.
    ProgressPages(RecordKeeper &keeper, MemoryBudget &budget, std::string group_key, std::uint32_t uid)
        : keeper_(keeper), budget_(budget), group_key_(std::move(group_key)), uid_(uid) {}
    ~ProgressPages() { clear(); }
    ProgressPages(const ProgressPages &) = delete;
    ProgressPages &operator=(const ProgressPages &) = delete;

    void restore(const RecordName &name, const records::PageRecordT &record, UniqueFd fd);
    /// The page of `rank` in `generation`; a fresh one when there is none yet. resource_exhausted: no worker
    /// more of this user.
    Result<SharedFd> page(Rank rank, GenerationId generation);
    /// All of `generation`. Untrusted values: brought into a sane range.
    std::vector<elastic::RankProgress> read(GenerationId generation, std::chrono::nanoseconds now) const;
    void drop();

  private:
    class Mapping;
    struct Page {
        GenerationId generation;
        SharedFd fd;
        std::shared_ptr<Mapping> mapping;
    };
    void put(Rank rank, Page page);
    void clear();
    RecordKeeper &keeper_;
    MemoryBudget &budget_;
    std::string group_key_;
    std::uint32_t uid_;
    std::map<Rank, Page> pages_;
};

}  // namespace dlrover::daemon
