// SPDX-License-Identifier: Apache-2.0
#include "mover/names.h"

#include <algorithm>

namespace dlrover::mover {

Result<std::vector<transport::SocketAddress>> Names::resolve(const std::string &name, Clock::time_point now) {
    auto known = found_.find(name);
    if (known == found_.end() || now >= known->second.until) known = ask(name, now);
    if (known->second.addresses.empty()) return Status(Code::unavailable, known->second.why);
    return known->second.addresses;
}

std::map<std::string, Names::Found>::iterator Names::ask(const std::string &name, Clock::time_point now) {
    if (found_.size() >= most) found_.clear();
    auto found = ask_(name);
    Found &entry = found_[name];
    if (found.ok() && !found->empty()) {
        entry = {std::move(*found), {}, now + believed};
    } else {
        // What was found before serves on. The time counts from the answer, which may have taken long.
        entry.why = found.ok() ? name + " has no address" : found.status().message();
        entry.until = std::max(now, Clock::now()) + failure_believed;
    }
    return found_.find(name);
}

}  // namespace dlrover::mover
