// SPDX-License-Identifier: Apache-2.0
#include "proto/codec.h"

#include <boost/test/unit_test.hpp>

#include "keeper_generated.h"
#include "local_generated.h"
#include "proto/local_codec.h"

using namespace dlrover;
using namespace dlrover::proto;

namespace {

/// A message whose body has a type and no table: the FlatBuffers verifier accepts it.
Bytes without_table(std::uint8_t type) {
    flatbuffers::FlatBufferBuilder builder;
    auto start = builder.StartTable();
    builder.AddElement<std::uint8_t>(local::Message::VT_BODY_TYPE, type, 0);
    builder.Finish(flatbuffers::Offset<local::Message>(builder.EndTable(start)), "DLL1");
    return Bytes(builder.GetBufferPointer(), builder.GetBufferPointer() + builder.GetSize());
}

Bytes finished(flatbuffers::FlatBufferBuilder &builder, local::Body type, flatbuffers::Offset<void> body) {
    builder.Finish(local::CreateMessage(builder, 1, type, body), "DLL1");
    return Bytes(builder.GetBufferPointer(), builder.GetBufferPointer() + builder.GetSize());
}

/// So many places that refer to one string.
Bytes one_string(std::size_t places, std::size_t length) {
    flatbuffers::FlatBufferBuilder builder;
    std::vector<flatbuffers::Offset<flatbuffers::String>> all(places,
                                                              builder.CreateString(std::string(length, 'x')));
    auto variables = builder.CreateVector(all);
    local::WorldPublishedBuilder world(builder);
    world.add_variables(variables);
    return finished(builder, local::Body::WorldPublished, world.Finish().Union());
}

/// So many places that refer to one table, which refers so often to one string.
Bytes one_table(std::size_t places, std::size_t inside, std::size_t length) {
    flatbuffers::FlatBufferBuilder builder;
    std::vector<flatbuffers::Offset<flatbuffers::String>> all(inside,
                                                              builder.CreateString(std::string(length, 'x')));
    auto nodes = builder.CreateVector(all);
    local::GroupStatusBuilder group(builder);
    group.add_nodes(nodes);
    std::vector<flatbuffers::Offset<local::GroupStatus>> groups(places, group.Finish());
    auto reply = local::CreateStatusReply(builder, builder.CreateVector(groups));
    return finished(builder, local::Body::StatusReply, reply.Union());
}

}  // namespace

BOOST_AUTO_TEST_SUITE(codec)

/// Any user of a node could have made the daemon take gigabytes with 48 KiB.
BOOST_AUTO_TEST_CASE(what_would_grow_when_it_is_unpacked_is_refused) {
    BOOST_TEST(decode_local(one_string(1, 1000)).ok());
    BOOST_TEST(decode_local(one_table(1, 1, 1000)).ok());
    for (auto [places, length] : {std::pair(2, 1000), std::pair(16000, 16000), std::pair(100, 200)})
        BOOST_TEST((decode_local(one_string(places, length)).status().code() == Code::corrupt),
                   places << " of " << length);
    for (auto [places, inside, length] :
         {std::tuple(1000, 10000, 100), std::tuple(20, 20, 20), std::tuple(50000, 0, 0)})
        BOOST_TEST((decode_local(one_table(places, inside, length)).status().code() == Code::corrupt),
                   places << " of " << inside);
}

BOOST_AUTO_TEST_CASE(what_we_write_is_no_larger_unpacked) {
    local::StatusReplyT reply;
    for (int g = 0; g < 300; ++g) {
        auto group = std::make_unique<local::GroupStatusT>();
        group->user = "same";
        for (int n = 0; n < 200; ++n) group->nodes.push_back("same name");
        group->mover = std::make_unique<local::MoverStatusT>();
        reply.groups.push_back(std::move(group));
    }
    for (int g = 0; g < 5000; ++g) reply.groups.push_back(std::make_unique<local::GroupStatusT>());
    auto decoded = decode_local(encode_local(make_local(1, reply)));
    BOOST_REQUIRE_MESSAGE(decoded.ok(), decoded.status().message());
    BOOST_TEST(decoded->body.AsStatusReply()->groups.size() == 5300u);
}

/// A user could have ended the daemon with this.
BOOST_AUTO_TEST_CASE(a_body_that_is_announced_and_missing_is_refused) {
    for (int type = 0; type < 256; ++type)
        BOOST_TEST(
            (decode_local(without_table(static_cast<std::uint8_t>(type))).status().code() == Code::corrupt),
            type);
}

BOOST_AUTO_TEST_CASE(a_body_of_a_later_version_is_refused) {
    local::HelloT hello;
    auto bytes = encode_local(make_local(1, hello));
    flatbuffers::GetMutableRoot<flatbuffers::Table>(bytes.data())
        ->SetField<std::uint8_t>(local::Message::VT_BODY_TYPE, 250, 0);
    BOOST_TEST((decode_local(bytes).status().code() == Code::corrupt));
}

BOOST_AUTO_TEST_CASE(a_message_of_another_protocol_is_refused) {
    keeper::MessageT message;
    message.body.Set(keeper::ListT());
    auto bytes = encode<keeper::Message>(message, "DLK1");
    BOOST_TEST((decode<keeper::Message>(bytes, "DLK1").ok()));
    BOOST_TEST(!decode_local(bytes).ok());
    for (std::size_t n = 0; n < bytes.size(); ++n)
        BOOST_TEST(!(decode<keeper::Message>(std::span<const std::uint8_t>(bytes).first(n), "DLK1").ok()));
}

BOOST_AUTO_TEST_SUITE_END()
