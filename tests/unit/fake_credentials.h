// SPDX-License-Identifier: Apache-2.0
// MUNGE's twin for tests: a credential is a number in a realm; each can be opened once by each node, as
// munged does it.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "transport/credentials.h"

namespace dlrover::test {

struct FakeRealm {
    std::mutex mutex;
    std::map<std::string, transport::Voucher> made;
    unsigned next = 0;
};

class FakeCredentials final : public transport::Credentials {
  public:
    FakeCredentials(std::shared_ptr<FakeRealm> realm, std::uint32_t uid)
        : realm_(std::move(realm)), uid_(uid) {}

    Result<std::string> encode(std::span<const std::uint8_t> payload) override {
        std::lock_guard lock(realm_->mutex);
        if (!replay.empty()) return replay;
        if (silent) return Status(Code::unavailable, "munged is away");
        std::string text = "FAKE:" + std::to_string(realm_->next++);
        realm_->made[text] = {{payload.begin(), payload.end()}, uid_, uid_};
        last = text;
        return text;
    }
    Result<transport::Voucher> decode(const std::string &credential) override {
        std::lock_guard lock(realm_->mutex);
        auto it = realm_->made.find(credential);
        if (it == realm_->made.end()) return Status(Code::permission_denied, "invalid credential");
        if (!accept_replays && !opened_.insert(credential).second)
            return Status(Code::permission_denied, "replayed credential");
        return it->second;
    }

    /// Guarded by the realm's mutex.
    std::string replay, last;
    bool silent = false, accept_replays = false;

  private:
    std::shared_ptr<FakeRealm> realm_;
    std::uint32_t uid_;
    std::set<std::string> opened_;
};

}  // namespace dlrover::test
