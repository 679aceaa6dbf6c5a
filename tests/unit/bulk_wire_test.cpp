// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "transport/bulk_wire.h"
#include "transport/rate_limit.h"

using namespace dlrover;
using namespace dlrover::transport;

namespace {

BulkGreeting some_greeting() {
    BulkGreeting greeting;
    greeting.methods = static_cast<BulkMethods>(BulkMethod::tcp);
    greeting.stream = 1;
    greeting.streams = 3;
    greeting.transfer = 0x0123456789abcdef;
    greeting.bytes = 77;
    greeting.nonce.fill(9);
    return greeting;
}

Key key_of(std::uint8_t value) {
    std::array<std::uint8_t, key_bytes> bytes;
    bytes.fill(value);
    return Key(bytes);
}

bool ok(const Status &status) {
    return status.ok();
}

}  // namespace

BOOST_AUTO_TEST_SUITE(bulk_wire)

BOOST_AUTO_TEST_CASE(greeting_and_answer_come_back) {
    auto greeting = decode_greeting(encode(some_greeting()));
    BOOST_REQUIRE(greeting.ok());
    BOOST_TEST(greeting->methods == 1);
    BOOST_TEST(greeting->stream == 1);
    BOOST_TEST(greeting->streams == 3);
    BOOST_TEST(greeting->transfer == 0x0123456789abcdef);
    BOOST_TEST(greeting->bytes == 77);
    BOOST_TEST((greeting->nonce == some_greeting().nonce));
    auto answer = decode_answer(encode(BulkAnswer{BulkMethod::ucx, false, some_greeting().nonce}));
    BOOST_REQUIRE(answer.ok());
    BOOST_TEST((answer->method == BulkMethod::ucx));
    BOOST_TEST((answer->nonce == some_greeting().nonce));
    auto receipt = decode_receipt(encode(BulkReceipt{Code::corrupt, 11}));
    BOOST_REQUIRE(receipt.ok());
    BOOST_TEST((receipt->code == Code::corrupt));
    BOOST_TEST(receipt->text_bytes == 11);
}

BOOST_AUTO_TEST_CASE(what_is_here_already_comes_back) {
    auto answer = decode_answer(encode(BulkAnswer{BulkMethod::tcp, true, {}}));
    BOOST_REQUIRE(answer.ok());
    BOOST_TEST((answer->method == BulkMethod::tcp && answer->spares && !answer->unsummed));
    answer = decode_answer(encode(BulkAnswer{BulkMethod::tcp, false, {}, true}));
    BOOST_REQUIRE(answer.ok());
    BOOST_TEST((answer->method == BulkMethod::tcp && !answer->spares && answer->unsummed));
    const std::vector<BulkHave> haves = {{1, 2, 3}, {UINT64_MAX, 0, 7}};
    auto bytes = encode(std::span(haves));
    BOOST_TEST(bytes.size() == 48u);
    BOOST_TEST(bytes[8] == 2);
    BOOST_TEST((decode_haves(bytes) == haves));
    const std::vector<BulkSpared> spared = {{0, 2}, {2, 1}, {9, 1}};
    auto decoded = decode_spared(encode(std::span(spared)), 10);
    BOOST_REQUIRE(decoded.ok());
    BOOST_TEST((*decoded == spared));
    BOOST_TEST(decode_spared({}, 10).ok());
}

BOOST_AUTO_TEST_CASE(blocks_that_are_left_out_are_the_transfers_own_once_and_in_order) {
    auto refused = [](std::vector<BulkSpared> spared) {
        return decode_spared(encode(std::span<const BulkSpared>(spared)), 10).status().code() ==
               Code::corrupt;
    };
    BOOST_TEST(!refused({{0, 10}}));
    BOOST_TEST(refused({{0, 11}}));
    BOOST_TEST(refused({{10, 1}}));
    BOOST_TEST(refused({{3, 0}}));
    BOOST_TEST(refused({{3, 2}, {4, 1}}));
    BOOST_TEST(refused({{3, 2}, {1, 1}}));
    BOOST_TEST(refused({{1, UINT64_MAX}}));
    BOOST_TEST(refused({{UINT64_MAX, 2}}));
}

BOOST_AUTO_TEST_CASE(the_layout_is_that_of_the_page) {
    auto bytes = encode(some_greeting());
    const std::uint8_t start[] = {'D', 'L', 'R', 'B',  'U',  'L',  'K',  0,    1,    0,    1,    0,  1,
                                  0,   3,   0,   0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01, 77, 0};
    BOOST_TEST(std::equal(std::begin(start), std::end(start), bytes.begin()));
    BOOST_TEST(bytes[32] == 9);
    auto block = encode(BulkBlock{0x0102, 0x0304, 0x0506, 0x0708});
    const std::uint8_t expected[] = {2, 1, 0, 0, 0, 0, 0, 0, 4, 3, 0, 0, 6, 5, 0, 0, 8, 7, 0, 0, 0, 0, 0, 0};
    BOOST_TEST(block == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(numbers_that_can_not_be_are_refused) {
    auto refused = [](auto change) {
        BulkGreeting greeting = some_greeting();
        change(greeting);
        return !decode_greeting(encode(greeting)).ok();
    };
    BOOST_TEST(!refused([](BulkGreeting &) {}));
    BOOST_TEST(refused([](BulkGreeting &g) { g.streams = 0; }));
    BOOST_TEST(refused([](BulkGreeting &g) { g.streams = max_bulk_streams + 1; }));
    BOOST_TEST(refused([](BulkGreeting &g) { g.stream = 3; }));
    BOOST_TEST(refused([](BulkGreeting &g) { g.methods = 0; }));
    BOOST_TEST(refused([](BulkGreeting &g) { g.methods = bulk_spares; }), "no way");
    BOOST_TEST(refused([](BulkGreeting &g) { g.bytes = 0; }));
    auto bytes = encode(some_greeting());
    bytes[8] = 2;
    BOOST_TEST((decode_greeting(bytes).status().code() == Code::unsupported));
    bytes[0] = 'X';
    BOOST_TEST((decode_greeting(bytes).status().code() == Code::corrupt));
    BOOST_TEST(!decode_answer(encode(BulkAnswer{static_cast<BulkMethod>(3), false, {}})).ok());
    BOOST_TEST(!decode_receipt(encode(BulkReceipt{Code::ok, max_bulk_text_bytes + 1})).ok());
    BOOST_TEST(!decode_receipt(encode(BulkReceipt{static_cast<Code>(200), 0})).ok());
}

BOOST_AUTO_TEST_CASE(a_block_is_one_of_those_that_the_transfer_is_cut_into) {
    constexpr std::uint64_t unit = bulk_block_bytes, total = 2 * unit + 5;
    auto full = static_cast<std::uint32_t>(unit);
    BOOST_TEST(ok(check_block({0, full, 0, 0}, 0, total)));
    BOOST_TEST(ok(check_block({2 * unit, 5, 4, 0}, 4, total)));
    BOOST_TEST(ok(check_block({0, 0, 1, 0}, 1, total)));
    BOOST_TEST(!ok(check_block({0, full, 1, 0}, 0, total)));
    BOOST_TEST(!ok(check_block({unit, full - 1, 0, 0}, 0, total)));
    BOOST_TEST(!ok(check_block({2 * unit, full, 0, 0}, 0, total)));
    BOOST_TEST(!ok(check_block({3 * unit, full, 0, 0}, 0, total)));
    BOOST_TEST(!ok(check_block({1, full, 0, 0}, 0, total)));
    BOOST_TEST(!ok(check_block({UINT64_MAX - unit + 1, full, 0, 0}, 0, total)));
    BOOST_TEST(ok(check_block({unit, full, 0, 0}, 0, 2 * unit)));
}

BOOST_AUTO_TEST_CASE(a_session_is_of_one_key_and_one_exchange) {
    BOOST_REQUIRE(init_crypto().ok());
    auto greeting = encode(some_greeting());
    auto answer = encode(BulkAnswer{BulkMethod::tcp, false, make_bulk_nonce()});
    BulkSession session(key_of(1), greeting, answer);
    auto mac = session.mac(bulk_label::block, answer);
    BOOST_TEST(ok(BulkSession(key_of(1), greeting, answer).check(bulk_label::block, answer, mac)));
    BOOST_TEST(!ok(BulkSession(key_of(2), greeting, answer).check(bulk_label::block, answer, mac)));
    auto other_answer = encode(BulkAnswer{BulkMethod::tcp, false, make_bulk_nonce()});
    BOOST_TEST(!ok(BulkSession(key_of(1), greeting, other_answer).check(bulk_label::block, answer, mac)));
    auto other_greeting = greeting;
    other_greeting[40] ^= 1;
    BOOST_TEST(!ok(BulkSession(key_of(1), other_greeting, answer).check(bulk_label::block, answer, mac)));
    BOOST_TEST(!ok(session.check(bulk_label::receipt, answer, mac)));
    BOOST_TEST(!ok(session.check(bulk_label::block, other_answer, mac)));
    BOOST_TEST(!ok(session.check(bulk_label::block, answer, mac, answer)));
    mac[31] ^= 1;
    BOOST_TEST(!ok(session.check(bulk_label::block, answer, mac)));
}

BOOST_AUTO_TEST_CASE(a_rate_spreads_what_is_taken_and_saves_nothing_up) {
    using std::chrono::seconds;
    RateLimit rate(100);
    RateLimit::Time start{seconds(1000)};
    BOOST_TEST((rate.take(100, start) == start));
    BOOST_TEST((rate.take(50, start) == start + seconds(1)));
    BOOST_TEST((rate.take(100, start + seconds(1)) == start + std::chrono::milliseconds(1500)));
    BOOST_TEST((rate.take(100, start + seconds(60)) == start + seconds(60)));
    BOOST_TEST((rate.take(100, start + seconds(60)) == start + seconds(61)));
    RateLimit none(0);
    BOOST_TEST((none.take(UINT64_MAX, start) == start));
    BOOST_TEST((none.take(UINT64_MAX, start) == start));
}

BOOST_AUTO_TEST_SUITE_END()
