// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/conversation.h"

#include <algorithm>
#include <string_view>

namespace dlrover::pmix {
namespace {

constexpr std::size_t max_requests = 256;               ///< that are not answered
constexpr std::uint32_t max_rest = 1u << 30;            ///< more is no message
constexpr std::string_view own_limit = "pmix.timeout";  ///< PMIX_TIMEOUT among what the caller says

/// None: of others nothing is needed.
const char *purpose_of(std::uint8_t command) {
    switch (command) {
        case 3:
            return "a fence";
        case 4:
            return "what another rank puts";
        case 10:
            return "PMIx_Connect";
        case 11:
            return "PMIx_Disconnect";
        case 24:
        case 28:
            return "a process group";
        default:
            return nullptr;
    }
}

}  // namespace

std::uint32_t Conversation::Message::number(std::size_t at) const {
    return std::uint32_t{header[at]} << 24 | std::uint32_t{header[at + 1]} << 16 |
           std::uint32_t{header[at + 2]} << 8 | std::uint32_t{header[at + 3]};
}

/// begun: a header is whole. rest: a part of what follows it.
template <typename Begun, typename Rest>
void Conversation::follow(Message &message, std::span<const std::uint8_t> bytes, Begun begun, Rest rest) {
    while (!bytes.empty() && !lost_) {
        if (message.left == 0) {
            std::size_t n = std::min(bytes.size(), message.header.size() - message.have);
            std::copy_n(bytes.begin(), n, message.header.begin() + static_cast<std::ptrdiff_t>(message.have));
            message.have += n;
            bytes = bytes.subspan(n);
            if (message.have < message.header.size()) return;
            message.have = 0;
            message.left = message.number(8);
            lost_ = message.left > max_rest;
            begun();
            continue;
        }
        auto n = static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), message.left));
        rest(bytes.first(n));
        message.left -= n;
        bytes = bytes.subspan(n);
    }
}

void Conversation::received(std::span<const std::uint8_t> bytes, Time now) {
    follow(
        in_, bytes,
        [&] {
            begun_ = 0;
            window_.clear();
        },
        [&](std::span<const std::uint8_t> part) { read_on(part, now); });
}

void Conversation::read_on(std::span<const std::uint8_t> bytes, Time now) {
    constexpr std::uint8_t one_value = 2;
    for (; begun_ < std::size(begin_) && !bytes.empty(); bytes = bytes.subspan(1)) {
        begin_[begun_++] = bytes.front();
        if (begun_ == std::size(begin_))
            begin_request(begin_[0] == one_value ? purpose_of(begin_[1]) : nullptr, now);
    }
    look_for_limit(bytes);
}

void Conversation::sent(std::span<const std::uint8_t> bytes) {
    follow(
        out_, bytes, [&] { answer(out_.tag()); }, [](auto) {});
}

/// Of others than those that wait for ranks only the first are of use, as proof.
void Conversation::begin_request(const char *purpose, Time now) {
    if (proven_ && purpose == nullptr) return;
    if (requests_.size() >= max_requests) requests_.erase(requests_.begin());
    requests_.push_back({in_.tag(), purpose, now});
}

/// libpmix keeps to it, with all of this node that have come.
void Conversation::look_for_limit(std::span<const std::uint8_t> bytes) {
    if (requests_.empty() || requests_.back().tag != in_.tag() || requests_.back().purpose == nullptr) return;
    window_.append(bytes.begin(), bytes.end());
    if (window_.find(own_limit) != std::string::npos) requests_.back().is_limited = true;
    if (window_.size() > own_limit.size()) window_.erase(0, window_.size() - own_limit.size());
}

void Conversation::answer(std::uint32_t tag) {
    auto known = std::ranges::find(requests_, tag, &Request::tag);
    if (known == requests_.end()) return;
    requests_.erase(known);
    if (std::exchange(proven_, true)) return;
    std::erase_if(requests_, [](const Request &r) { return r.purpose == nullptr; });
}

std::optional<Conversation::Wait> Conversation::wait() const {
    if (!proven_ || lost_) return std::nullopt;
    for (const Request &r : requests_)
        if (r.purpose != nullptr && !r.is_limited) return Wait{r.purpose, r.since};
    return std::nullopt;
}

bool Conversation::has_limited() const {
    return proven_ && !lost_ && std::ranges::any_of(requests_, &Request::is_limited);
}

}  // namespace dlrover::pmix
