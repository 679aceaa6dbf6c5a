// SPDX-License-Identifier: Apache-2.0
// How much of the loop's time a user's questions may take: all jobs of the node wait for the loop. Pure; time
// is an argument. Thread: one.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>

namespace dlrover::daemon {

class QueryBudget {
  public:
    using Time = std::chrono::microseconds;
    static constexpr Time burst = std::chrono::milliseconds(500);
    static constexpr int share = 20;  ///< one part in so many of the time that passes

    /// False: the user has used up his part, and gets some again within a second.
    bool allows(std::uint32_t uid, Time now) {
        refill(uid, now);
        auto user = users_.find(uid);
        return user == users_.end() || user->second.used < burst;
    }
    void spend(std::uint32_t uid, Time took, Time now) {
        refill(uid, now);
        if (took > Time(0)) users_.try_emplace(uid, User{Time(0), now}).first->second.used += took;
    }
    std::size_t users() const { return users_.size(); }

  private:
    struct User {
        Time used, at;
    };
    /// Whose time is all back is forgotten.
    void refill(std::uint32_t uid, Time now) {
        auto user = users_.find(uid);
        if (user == users_.end()) return;
        user->second.used -= (now - user->second.at) / share;
        user->second.at = now;
        if (user->second.used <= Time(0)) users_.erase(user);
    }

    std::map<std::uint32_t, User> users_;
};

}  // namespace dlrover::daemon
