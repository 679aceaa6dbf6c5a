// SPDX-License-Identifier: Apache-2.0
#include "fuzz.h"
#include "keeper_generated.h"
#include "proto/codec.h"

namespace dlrover::fuzz {
namespace {

using namespace proto;
constexpr const char *identifier = "DLK1";

template <typename BodyT>
Bytes seed(BodyT body) {
    keeper::MessageT message;
    message.id = 3;
    message.body.Set(std::move(body));
    return encode<keeper::Message>(message, identifier);
}

}  // namespace

bool run(std::span<const std::uint8_t> input) {
    auto message = decode<keeper::Message>(input, identifier);
    if (!message) return false;
    auto again = decode<keeper::Message>(encode<keeper::Message>(*message, identifier), identifier);
    require(again.ok() && again->body.type == message->body.type, "what is accepted can be written again");
    return true;
}

std::vector<Bytes> seeds() {
    keeper::PutT put;
    put.name = "promise/12.0";
    put.value = {1, 2, 3, 4};
    keeper::DropT drop;
    drop.name = "group/12.*";
    return {seed(std::move(put)), seed(std::move(drop)), seed(keeper::ListT()), seed(keeper::EndT()),
            seed(keeper::ReadyT())};
}

}  // namespace dlrover::fuzz
