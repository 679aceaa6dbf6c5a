// SPDX-License-Identifier: Apache-2.0
#include "transport/address_check.h"

#include <algorithm>

namespace dlrover::transport {

AddressCheck::AddressCheck(EventLoop &loop, WorkerThread &resolver, AddressRules rules, LookUp look_up)
    : loop_(loop), resolver_(resolver), rules_(rules), look_up_(std::move(look_up)) {}

AddressCheck::Known &AddressCheck::remember(const std::string &node) {
    if (known_.size() >= rules_.max_kept)
        std::erase_if(known_, [](const auto &entry) { return !entry.second.told; });
    Known &known = known_[node];
    known.since = loop_.now();
    return known;
}

const AddressCheck::Known *AddressCheck::find(const std::string &node) {
    auto it = known_.find(node);
    if (it == known_.end()) return nullptr;
    if (it->second.told || loop_.now() - it->second.since < rules_.keep) return &it->second;
    known_.erase(it);
    return nullptr;
}

void AddressCheck::learn(const std::string &node, const std::string &address) {
    if (address.empty()) {
        if (auto it = known_.find(node); it != known_.end()) it->second.told = false;
        return;
    }
    Known &known = remember(node);
    known = {.text = address, .told = true, .since = loop_.now()};
    if (auto numeric = parse_address(address)) known.addresses.push_back(*numeric);
}

void AddressCheck::check(const std::string &node, const SocketAddress &remote, Answer<Verdict> answer) {
    const Known *known = find(node);
    if (!known) return ask_slurm(node, remote, std::move(answer));
    if (known->is_node && known->addresses.empty() && rules_.check_addresses)
        return resolve_name(node, remote, std::move(answer));
    judge(node, *known, remote, answer);
}

void AddressCheck::ask_slurm(const std::string &node, const SocketAddress &remote, Answer<Verdict> answer) {
    look_up_(
        node, [this, alive = alive_, node, remote, answer = std::move(answer)](Result<std::string> address) {
            if (!*alive) return;
            if (!address && address.status().code() != Code::not_found)
                return answer(Status(Code::unavailable, "Slurm cannot be asked for the address of " + node));
            Known &known = remember(node);
            known = {.text = address ? *address : "", .is_node = address.ok(), .since = loop_.now()};
            if (known.is_node)
                if (auto numeric = parse_address(known.text)) known.addresses.push_back(*numeric);
            check(node, remote, answer);
        });
}

void AddressCheck::resolve_name(const std::string &node, const SocketAddress &remote,
                                Answer<Verdict> answer) {
    auto job = [this, alive = alive_, node, remote, answer,
                text = known_[node].text]() -> WorkerThread::Completion {
        auto addresses = std::make_shared<Result<std::vector<SocketAddress>>>(resolve(text));
        return [this, alive, node, remote, answer, addresses] {
            if (!*alive) return;
            if (!*addresses) return answer(Status(Code::unavailable, addresses->status().message()));
            Known &known = known_[node];
            known.addresses = **addresses;
            auto reply = answer;
            judge(node, known, remote, reply);
        };
    };
    if (!resolver_.submit(job)) answer(Status(Code::unavailable, "too many names wait to be resolved"));
}

void AddressCheck::judge(const std::string &node, const Known &known, const SocketAddress &remote,
                         Answer<Verdict> &answer) {
    if (!known.is_node) {
        if (rules_.accept_guests) return answer(Verdict{.guest = true});
        return answer(Status(Code::permission_denied, node + " is no node of Slurm"));
    }
    bool from_there = std::any_of(known.addresses.begin(), known.addresses.end(),
                                  [&](const SocketAddress &address) { return address.same_host(remote); });
    if (from_there || !rules_.check_addresses) return answer(Verdict{});
    answer(Status(Code::permission_denied, node + " is at " + known.text + ", not at " + remote.host()));
}

}  // namespace dlrover::transport
