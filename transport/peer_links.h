// SPDX-License-Identifier: Apache-2.0
// The links of one daemon: one TCP connection a pair of daemons, used both ways, whoever connected.
#pragma once

#include <memory>

#include "common/event_loop.h"
#include "common/settings.h"
#include "transport/address_check.h"
#include "transport/credentials.h"
#include "transport/peer_network.h"
#include "transport/peer_session.h"

namespace dlrover::transport {

struct PeerLinksConfig {
    std::string cluster, node;
    ListenOptions listen;  ///< all daemons of a cluster listen on the same port; 0: any free one (tests)
    std::uint16_t peer_port = 0;  ///< where peers listen; 0: as this daemon does
    SessionLimits session;
    AddressRules addresses;
    EventLoop::Time connect_timeout = std::chrono::seconds(3);
    EventLoop::Time reconnect_min = std::chrono::milliseconds(100), reconnect_max = std::chrono::seconds(5);
    std::size_t max_unfinished = 1024, max_unfinished_of_host = 32;  ///< handshakes of incoming connections
    std::uint32_t trusted_uid = 0;  ///< whose credentials count; another than 0 is for tests
    bool privileged_ports = true;   ///< false is for tests
};

/// Everything but cluster and node.
PeerLinksConfig links_config(const Settings &settings);

/// Thread: the loop's.
class PeerLinks final : public PeerNetwork {
  public:
    using LookUp = AddressCheck::LookUp;
    static Result<std::unique_ptr<PeerLinks>> create(EventLoop &loop, PeerLinksConfig config,
                                                     std::shared_ptr<Credentials> credentials,
                                                     LookUp look_up);
    ~PeerLinks() override;

    void set_callbacks(Callbacks callbacks) override;
    void connect_to(const std::string &node, const std::string &address) override;
    void release(const std::string &node) override;
    void send(const std::string &node, PeerEnvelope envelope) override;
    bool up(const std::string &node) const override;
    bool takes(const std::string &node, PeerEnvelope::Kind kind) const override;
    std::string own_address() const override;

    std::uint16_t port() const;

  private:
    struct State;
    explicit PeerLinks(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace dlrover::transport
