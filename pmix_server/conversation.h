// SPDX-License-Identifier: Apache-2.0
// What a client waits for, by the messages between it and libpmix. libpmix tells the server of a fence only
// when all ranks of this node that take part have come; of those that wait until then nobody is told.
//
// A message of libpmix 4.2: 16 bytes, big-endian (index of the peer, tag, length of the rest, nothing); then,
// of a request, how many values follow (one: a byte 2) and that value, a byte that says what is asked for.
// Its answer has its tag. Of what does not look like that nothing is said.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pmix_server/courier.h"

namespace dlrover::pmix {

/// One connection, from the first message after its handshake. Takes any bytes.
class Conversation {
  public:
    void received(std::span<const std::uint8_t> bytes, Time now);
    void sent(std::span<const std::uint8_t> bytes);

    struct Wait {
        const char *purpose;  ///< "a fence", for people
        Time since;
    };
    /// The request of longest standing that needs other ranks, and has no limit of its own. None where the
    /// bytes have not shown yet that they are what is described above: no answer has fitted a request.
    std::optional<Wait> wait() const;
    /// One that has a limit of its own is not answered.
    bool has_limited() const;

  private:
    struct Message {
        std::array<std::uint8_t, 16> header{};
        std::size_t have = 0;    ///< of the header
        std::uint64_t left = 0;  ///< of the rest
        std::uint32_t number(std::size_t at) const;
        std::uint32_t tag() const { return number(4); }
    };
    struct Request {
        std::uint32_t tag = 0;
        const char *purpose = nullptr;  ///< none: it needs no others
        Time since;
        bool is_limited = false;  ///< by PMIX_TIMEOUT
    };
    template <typename Begun, typename Rest>
    void follow(Message &message, std::span<const std::uint8_t> bytes, Begun begun, Rest rest);
    void read_on(std::span<const std::uint8_t> bytes, Time now);
    void begin_request(const char *purpose, Time now);
    void look_for_limit(std::span<const std::uint8_t> bytes);
    void answer(std::uint32_t tag);

    Message in_, out_;
    std::uint8_t begin_[2] = {};  ///< of in_'s rest
    std::size_t begun_ = 0;       ///< so much of it is here
    std::string window_;          ///< the last bytes of it, where it may have a limit of its own
    std::vector<Request> requests_;
    bool proven_ = false, lost_ = false;
};

}  // namespace dlrover::pmix
