// SPDX-License-Identifier: Apache-2.0
#include "transport/dialer.h"

namespace dlrover::transport {

Dialer::Dialer(EventLoop &loop, DialOptions options, Answer answer)
    : loop_(loop),
      options_(std::move(options)),
      answer_(std::move(answer)),
      last_failure_(Code::unavailable, "no address") {}

std::unique_ptr<Dialer> Dialer::begin(EventLoop &loop, WorkerThread &resolver, const std::string &address,
                                      DialOptions options, Answer answer) {
    std::unique_ptr<Dialer> dialer(new Dialer(loop, std::move(options), std::move(answer)));
    Dialer *self = dialer.get();
    auto alive = dialer->alive_;
    using Addresses = Result<std::vector<SocketAddress>>;
    auto hand_over = [self, alive](Addresses addresses) {
        return [self, alive, addresses = std::make_shared<Addresses>(std::move(addresses))] {
            if (*alive) self->on_resolved(std::move(*addresses));
        };
    };
    if (auto numeric = parse_address(address))
        loop.post(hand_over(std::vector<SocketAddress>{*numeric}));
    else if (!resolver.submit([address, hand_over] { return hand_over(resolve(address)); }))
        loop.post(hand_over(Status(Code::unavailable, "too many names wait to be resolved")));
    return dialer;
}

void Dialer::on_resolved(Result<std::vector<SocketAddress>> addresses) {
    if (!addresses) return finish(addresses.take_status());
    addresses_ = std::move(*addresses);
    try_next();
}

void Dialer::try_next() {
    writable_.reset();
    timer_.reset();
    socket_.reset();
    while (next_ < addresses_.size()) {
        SocketAddress &address = addresses_[next_++];
        address.set_port(options_.port);
        auto socket = begin_connect(address, options_.source, options_.privileged);
        if (!socket) {
            last_failure_ = socket.take_status();
            continue;
        }
        socket_ = std::move(*socket);
        writable_ = loop_.when_writable(socket_.get(), [this] { on_writable(); });
        timer_ = loop_.after(options_.timeout, [this] {
            last_failure_ = Status(Code::timeout, "no connection in time");
            try_next();
        });
        return;
    }
    finish(std::move(last_failure_));
}

void Dialer::on_writable() {
    last_failure_ = connect_result(socket_.get());
    if (!last_failure_.ok()) return try_next();
    finish(Dialed{std::move(socket_), addresses_[next_ - 1]});
}

void Dialer::finish(Result<Dialed> result) {
    writable_.reset();
    timer_.reset();
    // The answer may drop this object.
    auto answer = std::move(answer_);
    answer(std::move(result));
}

}  // namespace dlrover::transport
