// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <span>
#include <vector>

#include "daemon/notify.h"
#include "daemon/record_store.h"

namespace dlrover::daemon {

/// Mirrors the keeper's records in the service manager's descriptor store, so that they outlive the keeper.
/// A record is one memfd with its name and value, rewritten in place, and its descriptor. To the manager they
/// are "v" and "f" and a number of at most three digits to the base 36: it hands over all names in one
/// environment variable, which has 128 KiB.
class FdStore {
  public:
    explicit FdStore(const Notifier &notifier) : notifier_(notifier) {}

    /// What an earlier keeper left there; what makes no record is given up.
    void load(std::vector<std::pair<std::string, UniqueFd>> kept, RecordStore &into);
    void put(const std::string &name, std::span<const std::uint8_t> value, int fd);
    void drop(const std::string &name);

  private:
    struct Entry {
        std::uint32_t number = 0;
        UniqueFd memory;
        bool has_fd = false;
    };
    bool load_entry(std::uint32_t number, UniqueFd memory, UniqueFd fd, RecordStore &into);
    std::uint32_t free_number();
    void store(const std::string &fd_name, int fd) const;
    void remove(const std::string &fd_name) const;

    const Notifier &notifier_;
    std::map<std::string, Entry> entries_;  ///< by the record's name
    std::vector<std::uint32_t> free_;       ///< numbers below next_ that nobody has
    std::uint32_t next_ = 0;
};

}  // namespace dlrover::daemon
