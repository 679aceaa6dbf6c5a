// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <span>
#include <string>

#include "daemon/notify.h"
#include "daemon/record_store.h"

namespace dlrover::daemon {

/// Mirrors the keeper's records in the service manager's descriptor store, so that they outlive the keeper.
/// A record is one memfd with its value ("v" + name, rewritten in place) and its descriptor ("f" + name).
class FdStore {
  public:
    explicit FdStore(const Notifier &notifier) : notifier_(notifier) {}

    /// What an earlier keeper left there.
    void load(std::vector<std::pair<std::string, UniqueFd>> kept, RecordStore &into);
    void put(const std::string &name, std::span<const std::uint8_t> value, int fd);
    void drop(const std::string &name);

  private:
    const Notifier &notifier_;
    std::map<std::string, UniqueFd> values_;
};

}  // namespace dlrover::daemon
