// SPDX-License-Identifier: Apache-2.0
#include "transport/memory_network.h"

namespace dlrover::transport {

class MemoryHub::Network final : public PeerNetwork {
  public:
    Network(MemoryHub &hub, std::string node) : hub_(hub), node_(std::move(node)) {}
    ~Network() override { hub_.leave(node_); }
    void set_callbacks(Callbacks callbacks) override { callbacks_ = std::move(callbacks); }
    void connect_to(const std::string &node, const std::string &) override {
        ++hub_.wanted_[node_][node];
        hub_.consider(node_, node);
    }
    void release(const std::string &node) override {
        auto &count = hub_.wanted_[node_][node];
        if (count == 0) return;
        --count;
        hub_.consider(node_, node);
    }
    void send(const std::string &node, PeerEnvelope envelope) override {
        if (takes(node, envelope.kind)) hub_.carry(node_, node, std::move(envelope));
    }
    bool up(const std::string &node) const override { return hub_.up_.count(pair_of(node_, node)) > 0; }

    bool takes(const std::string &node, PeerEnvelope::Kind kind) const override {
        auto it = hub_.newest_kinds_.find(node);
        return it == hub_.newest_kinds_.end() || static_cast<std::uint8_t>(kind) <= it->second;
    }

    const Callbacks &callbacks() const { return callbacks_; }

  private:
    MemoryHub &hub_;
    std::string node_;
    Callbacks callbacks_;
};

std::unique_ptr<PeerNetwork> MemoryHub::join(const std::string &node) {
    auto network = std::make_unique<Network>(*this, node);
    members_[node] = network.get();
    for (const auto &[other, wants] : wanted_)
        if (wants.count(node) > 0) consider(other, node);
    return network;
}

void MemoryHub::leave(const std::string &node) {
    members_.erase(node);
    wanted_.erase(node);
    for (auto it = up_.begin(); it != up_.end();) {
        Pair pair = (it++)->first;
        if (pair.first == node || pair.second == node) set_up(pair, false);
    }
}

/// A little later: brings the link up or down as it is wanted then.
void MemoryHub::consider(const std::string &a, const std::string &b) {
    std::uint64_t flight = next_flight_++;
    flying_[flight] = loop_.after(options_.connect_delay, [this, a, b, flight] {
        auto handle = std::move(flying_[flight]);
        flying_.erase(flight);
        bool want = wanted_[a][b] > 0 || wanted_[b][a] > 0;
        bool can = members_.count(a) > 0 && members_.count(b) > 0 && a != b && cut_.count(pair_of(a, b)) == 0;
        bool is_up = up_.count(pair_of(a, b)) > 0;
        if (want && can && !is_up) set_up(pair_of(a, b), true);
        if (!want && is_up) set_up(pair_of(a, b), false);
    });
}

void MemoryHub::set_up(const Pair &pair, bool up) {
    if (up)
        up_[pair] = ++lives_;
    else
        up_.erase(pair);
    auto tell = [&](const std::string &node, const std::string &other) {
        auto it = members_.find(node);
        if (it == members_.end()) return;
        loop_.post([this, node, other, up] {
            auto member = members_.find(node);
            if (member != members_.end() && member->second->callbacks().on_link)
                member->second->callbacks().on_link(other, up);
        });
    };
    tell(pair.first, pair.second);
    tell(pair.second, pair.first);
}

bool MemoryHub::lost() {
    // xorshift64: the same seed loses the same messages.
    random_ ^= random_ << 13;
    random_ ^= random_ >> 7;
    random_ ^= random_ << 17;
    return static_cast<double>(random_ >> 11) * 0x1p-53 < options_.loss;
}

void MemoryHub::carry(const std::string &from, const std::string &to, PeerEnvelope envelope) {
    auto link = up_.find(pair_of(from, to));
    if (link == up_.end() || cut_.count(pair_of(from, to)) > 0 || lost()) return;
    std::uint64_t life = link->second, flight = next_flight_++;
    flying_[flight] = loop_.after(
        options_.delay,
        [this, from, to, life, flight, envelope = std::make_shared<PeerEnvelope>(std::move(envelope))] {
            auto handle = std::move(flying_[flight]);
            flying_.erase(flight);
            auto still = up_.find(pair_of(from, to));
            auto member = members_.find(to);
            bool arrives = still != up_.end() && still->second == life && cut_.count(pair_of(from, to)) == 0;
            if (arrives && member != members_.end() && member->second->callbacks().on_message)
                member->second->callbacks().on_message(from, std::move(*envelope));
        });
}

void MemoryHub::cut(const std::string &a, const std::string &b) {
    cut_.insert(pair_of(a, b));
}

void MemoryHub::heal(const std::string &a, const std::string &b) {
    cut_.erase(pair_of(a, b));
    consider(a, b);
}

void MemoryHub::reset(const std::string &a, const std::string &b) {
    if (up_.count(pair_of(a, b)) > 0) set_up(pair_of(a, b), false);
    consider(a, b);
}

}  // namespace dlrover::transport
