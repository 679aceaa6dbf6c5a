// SPDX-License-Identifier: Apache-2.0
#include "helper/session.h"

#include <poll.h>

#include <algorithm>

namespace dlrover::helper {
namespace {

using namespace std::chrono_literals;
constexpr auto first_pause = 50ms, longest_pause = 1000ms;

}  // namespace

Status Session::connect() {
    client_.reset();
    auto client = proto::LocalClient::connect(socket_, role_, answer_limit);
    if (!client) return client.take_status();
    ++connections_;
    DLROVER_TRY(hooks_.greet(*client));
    client_ = std::move(*client);
    return {};
}

void Session::run() {
    std::chrono::milliseconds pause = first_pause;
    for (;;) {
        auto start = std::chrono::steady_clock::now();
        // Why not is the agent's to say: it has the same daemon. Ours is to come back.
        if (connect().ok()) serve();
        hooks_.lost();
        if (std::chrono::steady_clock::now() - start > longest_pause) pause = first_pause;
        ::poll(nullptr, 0, static_cast<int>(pause.count()));
        pause = std::min<std::chrono::milliseconds>(2 * pause, longest_pause);
    }
}

/// Until the connection ends.
void Session::serve() {
    pollfd polled[] = {{client_->fd(), POLLIN, 0}, {outbox_.fd(), POLLIN, 0}};
    while (client_->connected()) {
        // Before waiting: orders may have come together with the welcome.
        for (auto push = client_->receive(0ms); push.ok(); push = client_->receive(0ms))
            take(std::move(*push));
        send_answers();
        if (client_->connected()) ::poll(polled, 2, -1);
    }
}

/// What is answered at once goes out before the next order, which may take long.
void Session::take(proto::LocalMessage push) {
    hooks_.take(std::move(push));
    send_answers();
}

void Session::send_answers() {
    for (Outbox::Answer &answer : outbox_.take()) {
        if (answer.connection != connections_ || !client_->connected()) continue;
        (void)client_->send_made(answer.message, answer_limit).ok();
    }
}

}  // namespace dlrover::helper
