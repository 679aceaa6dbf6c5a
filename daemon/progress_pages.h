// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>

#include "daemon/local_port.h"
#include "daemon/record_keeper.h"
#include "daemon/records.h"
#include "elastic/types.h"

namespace dlrover::daemon {

/// The progress pages of a group's local ranks: one a rank and generation, written by the worker.
class ProgressPages {
  public:
    ProgressPages(RecordKeeper &keeper, std::string group_key)
        : keeper_(keeper), group_key_(std::move(group_key)) {}

    void restore(const RecordName &name, const records::PageRecordT &record, UniqueFd fd);
    /// The page of `rank` in `generation`; a fresh one when there is none yet.
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
    RecordKeeper &keeper_;
    std::string group_key_;
    std::map<Rank, Page> pages_;
};

}  // namespace dlrover::daemon
