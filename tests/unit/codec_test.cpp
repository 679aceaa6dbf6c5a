// SPDX-License-Identifier: Apache-2.0
#include "proto/codec.h"

#include <boost/test/unit_test.hpp>

#include "keeper_generated.h"
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

}  // namespace

BOOST_AUTO_TEST_SUITE(codec)

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
