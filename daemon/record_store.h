// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"

namespace dlrover::daemon {

/// Named records, bytes and at most one descriptor each, with a bound on everything.
class RecordStore {
  public:
    struct Record {
        std::vector<std::uint8_t> value;
        UniqueFd fd;
    };
    struct Limits {
        std::size_t records = 32768;
        std::size_t descriptors = 16384;
        std::size_t bytes = 64u << 20;  ///< names and values
    };
    explicit RecordStore(Limits limits) : limits_(limits) {}
    RecordStore() : RecordStore(Limits{}) {}

    /// Stores or replaces; without a new descriptor the old one goes. On failure nothing changes.
    Status put(const std::string &name, std::vector<std::uint8_t> value, UniqueFd fd);
    /// A name that ends in '*' drops every record with that prefix. `dropped` is told each name.
    void drop(const std::string &name, const std::function<void(const std::string &)> &dropped = {});
    const std::map<std::string, Record> &records() const noexcept { return records_; }

  private:
    Limits limits_;
    std::map<std::string, Record> records_;
    std::size_t bytes_ = 0, descriptors_ = 0;
};

}  // namespace dlrover::daemon
