// SPDX-License-Identifier: Apache-2.0
#include "bench/scale_link.h"

#include <poll.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "bench/loopback.h"
#include "transport/link_codec.h"
#include "transport/secure_channel.h"

namespace dlrover::bench {
namespace {

using namespace dlrover::transport;

double thread_us() {
    timespec t{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) / 1e3;
}

using Ends = std::pair<UniqueFd, UniqueFd>;

/// One message's cost to both sides.
Result<std::pair<double, double>> carry(const Ends &ends, SecureChannel &from, SecureChannel &to,
                                        std::size_t bytes) {
    PeerEnvelope envelope;
    envelope.payload.resize(bytes, 7);
    double began = thread_us(), sent = 0, received = 0;
    auto frame = proto::make_frame(from.seal(encode_body(to_table(std::move(envelope)))));
    sent += thread_us() - began;
    proto::FrameReader reader;
    std::vector<std::uint8_t> buffer(64u << 10);
    std::optional<proto::Bytes> payload;
    for (std::size_t at = 0; !payload;) {
        began = thread_us();
        ssize_t n =
            ::send(ends.first.get(), frame.data() + at, frame.size() - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno != EAGAIN) return Status::from_errno("send");
        at += static_cast<std::size_t>(std::max<ssize_t>(n, 0));
        sent += thread_us() - began;
        pollfd polled{ends.second.get(), POLLIN, 0};
        began = thread_us();
        if (::poll(&polled, 1, 10000) != 1) return Status(Code::timeout, "nothing arrives");
        n = ::recv(ends.second.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
        if (n <= 0) return Status::from_errno("receive");
        DLROVER_TRY(reader.feed({buffer.data(), static_cast<std::size_t>(n)}));
        payload = reader.next();
        received += thread_us() - began;
    }
    began = thread_us();
    auto body = to.open(*payload);
    if (!body) return body.take_status();
    auto table = decode_frame(*body);
    if (!table) return table.take_status();
    auto arrived = from_table(std::move(*table->body.AsEnvelope()));
    received += thread_us() - began;
    if (!arrived || arrived->payload.size() != bytes) return Status(Code::corrupt, "other bytes came");
    return std::pair(sent, received);
}

Result<std::pair<double, double>> median(const Ends &ends, SecureChannel &from, SecureChannel &to,
                                         std::size_t bytes) {
    std::vector<double> sent, received;
    for (int i = 0; i < 400; ++i) {
        auto one = carry(ends, from, to, bytes);
        if (!one) return one.take_status();
        sent.push_back(one->first);
        received.push_back(one->second);
    }
    std::ranges::nth_element(sent, sent.begin() + 200);
    std::ranges::nth_element(received, received.begin() + 200);
    return std::pair(sent[200], received[200]);
}

}  // namespace

Result<LinkCost> measure_link() {
    DLROVER_TRY(init_crypto());
    auto ends = connected_pair();
    if (!ends) return ends.take_status();
    std::vector<std::uint8_t> a(secret_bytes, 1), b(secret_bytes, 2), transcript(64, 3);
    SecureChannel from(derive_keys(a, b, transcript, true)), to(derive_keys(a, b, transcript, false));
    constexpr std::size_t little = 256, much = 128u << 10;
    auto small = median(*ends, from, to, little), large = median(*ends, from, to, much);
    if (!small) return small.take_status();
    if (!large) return large.take_status();
    LinkCost cost;
    cost.send_byte = (large->first - small->first) / (much - little);
    cost.receive_byte = (large->second - small->second) / (much - little);
    cost.send_fixed = small->first - cost.send_byte * little;
    cost.receive_fixed = small->second - cost.receive_byte * little;
    return cost;
}

}  // namespace dlrover::bench
