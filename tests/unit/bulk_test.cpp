// SPDX-License-Identifier: Apache-2.0
// Transfers over real sockets of this machine.
#include <poll.h>
#include <pthread.h>
#include <sys/resource.h>

#include <boost/test/unit_test.hpp>
#include <fstream>
#include <future>
#include <thread>

#include "tests/unit/bulk_fixture.h"
#include "tests/unit/sanitized.h"
#include "transport/bulk_list.h"
#include "transport/bulk_sender.h"
#include "transport/bulk_server.h"

using namespace dlrover;
using namespace dlrover::test;
using namespace dlrover::transport;
using namespace std::chrono_literals;

namespace {

UniqueFd connect_to(const SocketAddress &to) {
    auto fd = begin_connect(to, "", false);
    BOOST_REQUIRE(fd.ok());
    return std::move(*fd);
}

bool is_closed(UniqueFd fd) {
    BulkSocket socket(std::move(fd), {}, {10s, std::nullopt});
    std::uint8_t byte;
    return socket.read(std::span(&byte, 1)).code() == Code::unavailable;
}

/// A sender that does as it likes, with the right key unless told otherwise.
class Hand {
  public:
    Hand(std::uint16_t port, BulkGreeting greeting, const Key &key = key_of(1)) : socket_(connect(port)) {
        if (greeting.methods == 0) greeting.methods = 1;
        if (greeting.streams == 0) greeting.streams = 1;
        if (greeting.transfer == 0) greeting.transfer = 7;
        auto bytes = encode(greeting);
        if (!socket_.write(bytes).ok()) return;
        AnswerBytes answer;
        BulkMac mac;
        if (!socket_.read(answer).ok() || !socket_.read(mac).ok()) return;
        session_.emplace(key, bytes, answer);
        greeted_ = socket_.write(session_->mac(bulk_label::proof, {})).ok();
    }

    bool greeted() const { return greeted_; }
    const BulkSession &session() const { return *session_; }
    BulkSocket &socket() { return socket_; }
    Status block(const BulkBlock &block, std::span<const std::uint8_t> data = {}) {
        BulkBlock header_of = block;
        if (header_of.xxh3 == 0) header_of.xxh3 = bulk_hash(data.data(), data.size());
        auto header = encode(header_of);
        DLROVER_TRY(socket_.write(header, session_->mac(bulk_label::block, header)));
        return socket_.write(data);
    }
    /// Until the other side closes, or too long.
    bool closed() {
        std::uint8_t byte;
        for (;;) {
            Status status = socket_.read(std::span(&byte, 1));
            if (!status.ok()) return status.code() == Code::unavailable;
        }
    }

  private:
    static BulkSocket connect(std::uint16_t port) {
        auto to = *parse_address("127.0.0.1");
        to.set_port(port);
        auto fd = begin_connect(to, "", false);
        BOOST_REQUIRE(fd.ok());
        pollfd polled{fd->get(), POLLOUT, 0};
        BOOST_REQUIRE(::poll(&polled, 1, 10000) == 1);
        return BulkSocket(std::move(*fd), {}, {10s, std::nullopt});
    }
    BulkSocket socket_;
    std::optional<BulkSession> session_;
    bool greeted_ = false;
};

BulkGreeting greeting_for(std::uint64_t bytes) {
    BulkGreeting greeting;
    greeting.bytes = bytes;
    return greeting;
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(bulk, Fixture)

BOOST_AUTO_TEST_CASE(all_bytes_arrive_whatever_the_length_and_the_number_of_streams) {
    for (std::uint64_t bytes : {std::uint64_t{1}, bulk_block_bytes - 1, bulk_block_bytes,
                                bulk_block_bytes + 1, 9 * mib, 21 * mib + 12345})
        for (std::uint16_t streams : {1, 2, 5, 16}) {
            auto told = expect(bytes);
            std::atomic<std::uint64_t> progress{0};
            BulkJob job = this->job(streams);
            job.progress = &progress;
            Status status = bulk_send(job);
            BOOST_TEST_CONTEXT(bytes << " bytes, " << streams << " streams: " << status.message()) {
                BOOST_TEST(status.ok());
                BOOST_TEST(outcome(told).ok());
                BOOST_TEST((memory == source));
                BOOST_TEST(progress == bytes);
            }
        }
}

BOOST_AUTO_TEST_CASE(many_transfers_at_once) {
    constexpr std::uint64_t count = 12;
    std::vector<std::vector<std::byte>> from, to(count, std::vector<std::byte>(3 * mib + 1));
    std::vector<std::future<Status>> sent;
    for (std::uint64_t i = 0; i < count; ++i) {
        from.push_back(random_bytes(3 * mib + 1));
        from[i][0] = static_cast<std::byte>(i);
        BulkTarget target;
        target.transfer = i + 1;
        target.key = key_of(static_cast<std::uint8_t>(i));
        target.memory = to[i];
        BOOST_REQUIRE(server->expect(std::move(target)).ok());
    }
    for (std::uint64_t i = 0; i < count; ++i) {
        BulkJob job = this->job();
        job.transfer = i + 1;
        job.key = key_of(static_cast<std::uint8_t>(i));
        job.memory = from[i];
        sent.push_back(std::async(std::launch::async, [job] { return bulk_send(job); }));
    }
    for (auto &status : sent) BOOST_TEST(status.get().ok());
    BOOST_TEST((from == to));
}

BOOST_AUTO_TEST_CASE(what_the_receiver_finds_wrong_the_sender_hears) {
    BulkTarget target;
    target.verify = [] { return Status(Code::corrupt, "chunk \"w\" does not have its checksum"); };
    auto told = expect(3 * mib, std::move(target));
    Status status = bulk_send(job());
    BOOST_TEST((status.code() == Code::corrupt));
    BOOST_TEST(status.message() == "chunk \"w\" does not have its checksum");
    BOOST_TEST((outcome(told).code() == Code::corrupt));
    BOOST_TEST(!bulk_send(job()).ok());  // the key is used up
}

BOOST_AUTO_TEST_CASE(verified_once_and_only_when_all_of_it_is_there) {
    std::atomic<int> calls{0};
    BulkTarget target;
    target.verify = [&] {
        ++calls;
        return memory == source ? Status() : Status(Code::corrupt, "too early");
    };
    auto told = expect(7 * mib + 1, std::move(target));
    BOOST_TEST(bulk_send(job(4)).ok());
    BOOST_TEST(outcome(told).ok());
    BOOST_TEST(calls == 1);
}

/// Of which it is told block by block, from where the job says on; the sender reads nothing for a checksum.
BOOST_AUTO_TEST_CASE(what_the_receiver_compares_has_no_checksums_of_its_own) {
    for (std::uint16_t streams : {1, 3}) {
        std::mutex mutex;
        std::vector<std::uint64_t> turns;
        std::map<std::uint16_t, std::uint64_t> last;  // turn of each stream
        BulkTarget target;
        target.compared = true;
        target.arrived = [&](std::uint16_t stream, std::uint64_t offset, std::uint64_t bytes) {
            std::lock_guard lock(mutex);
            BOOST_TEST(bytes == std::min(bulk_block_bytes, 5 * mib + 1 - offset));
            std::uint64_t turn = (offset / bulk_block_bytes + 21 - 16) % 21;
            auto [known, first] = last.try_emplace(stream, turn);
            BOOST_TEST((first || turn > known->second));  // which stream is first is a matter of chance
            known->second = turn;
            turns.push_back(turn);
        };
        target.verify = [&] { return memory == source ? Status() : Status(Code::corrupt, "too early"); };
        auto told = expect(5 * mib + 1, std::move(target));
        BulkJob job = this->job(streams);
        job.begin = 4 * mib + 5;
        job.hash = [](const void *, std::size_t) -> std::uint64_t { throw "nobody asks"; };
        BOOST_TEST(bulk_send(job).ok());
        BOOST_TEST(outcome(told).ok());
        std::ranges::sort(turns);
        for (std::uint64_t i = 0; i <= 20; ++i) BOOST_TEST(turns.at(i) == i);
    }
}

/// So that what has a checksum of its own comes by one stream; but the beginning by all of them.
BOOST_AUTO_TEST_CASE(neighbours_come_by_one_stream) {
    constexpr std::uint64_t beginning = 4, run = 2;
    std::mutex mutex;
    std::map<std::uint64_t, std::uint16_t> streams;
    BulkTarget target;
    target.compared = true;
    target.arrived = [&](std::uint16_t stream, std::uint64_t offset, std::uint64_t) {
        std::lock_guard lock(mutex);
        streams[offset / bulk_block_bytes] = stream;
    };
    target.verify = [&] { return memory == source ? Status() : Status(Code::corrupt, "too early"); };
    std::uint64_t blocks = 3 * 16 * run + beginning;
    auto told = expect(blocks * bulk_block_bytes - 5, std::move(target));
    BulkJob job = this->job(3);
    job.begin = (blocks - beginning) * bulk_block_bytes;
    BOOST_TEST(bulk_send(job).ok());
    BOOST_TEST(outcome(told).ok());
    BOOST_TEST(streams.size() == blocks);
    for (std::uint64_t i = 0; i < blocks - beginning; i += run)
        for (std::uint64_t n = i + 1; n < i + run; ++n) BOOST_TEST(streams[n] == streams[i]);
}

/// It may be of a version that knows nothing of that.
BOOST_AUTO_TEST_CASE(a_sender_that_was_not_told_so_says_checksums) {
    for (BulkMethods offered : {BulkMethods{1}, static_cast<BulkMethods>(1 | bulk_unsummed)})
        for (bool compared : {false, true}) {
            std::vector<std::uint8_t> data(bulk_block_bytes, 1);
            BulkTarget target;
            target.compared = compared;
            target.verify = [] { return Status(); };
            auto told = expect(bulk_block_bytes, std::move(target));
            BulkGreeting greeting = greeting_for(bulk_block_bytes);
            greeting.methods = offered;
            Hand hand(server->port(), greeting);
            BOOST_REQUIRE(hand.greeted());
            BulkBlock block{0, static_cast<std::uint32_t>(bulk_block_bytes), 0, 77};
            (void)hand.block(block, data).ok();
            (void)hand.block({0, 0, 1, 0}).ok();
            bool unsummed = compared && (offered & bulk_unsummed) != 0;
            BOOST_TEST((outcome(told).code() == (unsummed ? Code::ok : Code::corrupt)));
        }
}

BOOST_AUTO_TEST_CASE(what_is_here_already_is_not_sent) {
    for (std::uint16_t streams : {1, 3}) {
        auto told = expect(5 * mib + 1, with_blocks({1, 2, 3, 19}));
        std::atomic<std::uint64_t> progress{0};
        BulkJob job = sparing({{1, 3}, {19, 1}}, streams);
        job.progress = &progress;
        BOOST_TEST(bulk_send(job).ok());
        BOOST_TEST(outcome(told).ok());
        BOOST_TEST((memory == source));
        BOOST_TEST(progress == 4 * mib + 1);
    }
}

BOOST_AUTO_TEST_CASE(all_of_it_may_be_here_already) {
    auto told = expect(2 * bulk_block_bytes, with_blocks({0, 1}));
    BOOST_TEST(bulk_send(sparing({{0, 2}})).ok());
    BOOST_TEST(outcome(told).ok());
    BOOST_TEST((memory == source));
}

BOOST_AUTO_TEST_CASE(a_side_that_knows_nothing_of_that_gets_or_sends_all) {
    auto told = expect(mib, with_blocks({0}));
    BOOST_TEST(bulk_send(job()).ok());
    BOOST_TEST(outcome(told).ok());
    BOOST_TEST((memory == source));
    BOOST_TEST(asked == 0);
    told = expect(mib);
    BOOST_TEST(bulk_send(sparing({{0, 1}})).ok());
    BOOST_TEST(outcome(told).ok());
    BOOST_TEST((memory == source));
    BOOST_TEST(asked == 0);
}

BOOST_AUTO_TEST_CASE(what_is_not_here_after_all_the_sender_hears) {
    BulkTarget target = with_blocks({0});
    target.fill = [](std::span<const BulkSpared>) { return Status(Code::corrupt, "it is not here"); };
    auto told = expect(mib, std::move(target));
    Status status = bulk_send(sparing({{0, 1}}));
    BOOST_TEST((status.code() == Code::corrupt));
    BOOST_TEST(status.message() == "it is not here");
    BOOST_TEST((outcome(told).code() == Code::corrupt));
}

BOOST_AUTO_TEST_CASE(a_sender_that_leaves_out_what_it_likes_ends_the_transfer) {
    auto refused = [&](std::vector<BulkSpared> spared, bool again) {
        auto told = expect(2 * bulk_block_bytes, with_blocks({0}));
        BulkGreeting greeting = greeting_for(2 * bulk_block_bytes);
        greeting.methods = 1 | bulk_spares;
        Hand hand(server->port(), greeting);
        BOOST_REQUIRE(hand.greeted());
        BOOST_TEST(read_list(hand.socket(), hand.session(), bulk_label::have, BulkHave::wire_bytes, 99).ok());
        auto bytes = encode(std::span<const BulkSpared>(spared));
        (void)write_list(hand.socket(), hand.session(), again ? bulk_label::have : bulk_label::spared, bytes,
                         BulkSpared::wire_bytes)
            .ok();
        std::vector<std::uint8_t> data(bulk_block_bytes, 1);
        (void)hand.block({0, static_cast<std::uint32_t>(bulk_block_bytes), 0, 0}, data).ok();
        return outcome(told).code();
    };
    BOOST_TEST((refused({{0, 3}}, false) == Code::corrupt), "more than there is");
    BOOST_TEST((refused({{0, 1}}, false) == Code::corrupt), "and sends it all the same");
    BOOST_TEST((refused({{1, 1}}, true) == Code::permission_denied), "forged");
    BOOST_TEST((memory == std::vector<std::byte>(2 * bulk_block_bytes)));
}

/// Stream 0 says what is left out while other streams' blocks are on their way: those may be there first.
BOOST_AUTO_TEST_CASE(blocks_may_come_before_it_is_said_what_is_left_out) {
    static std::atomic<int> hashed;  // blocks that have come to their place
    BulkServerOptions options;
    options.hash = [](const void *data, std::size_t bytes) {
        ++hashed;
        return bulk_hash(data, bytes);
    };
    server = start(options);
    auto leaves_out = [&](std::uint64_t block) {
        int before = hashed;
        auto told = expect(2 * bulk_block_bytes, with_blocks({block}));
        BulkGreeting greeting = greeting_for(2 * bulk_block_bytes);
        greeting.streams = 2;
        greeting.methods = 1 | bulk_spares;
        Hand first(server->port(), greeting);
        BOOST_REQUIRE(first.greeted());
        BOOST_TEST(
            read_list(first.socket(), first.session(), bulk_label::have, BulkHave::wire_bytes, 99).ok());
        greeting.stream = 1;
        greeting.methods = 1;
        Hand other(server->port(), greeting);
        BOOST_REQUIRE(other.greeted());
        std::vector<std::uint8_t> data(bulk_block_bytes);
        std::memcpy(data.data(), source.data() + bulk_block_bytes, bulk_block_bytes);
        BOOST_TEST(
            other.block({bulk_block_bytes, static_cast<std::uint32_t>(bulk_block_bytes), 0, 0}, data).ok());
        BOOST_TEST(other.block({0, 0, 1, 0}).ok());
        for (auto until = Clock::now() + long_time; hashed == before && Clock::now() < until;)
            std::this_thread::sleep_for(1ms);
        const std::vector<BulkSpared> spared = {{block, 1}};
        BOOST_TEST(write_list(first.socket(), first.session(), bulk_label::spared, encode(std::span(spared)),
                              BulkSpared::wire_bytes)
                       .ok());
        (void)first.block({0, 0, 0, 0}).ok();
        return outcome(told).code();
    };
    BOOST_TEST((leaves_out(0) == Code::ok));
    BOOST_TEST((memory == source));
    BOOST_TEST((leaves_out(1) == Code::corrupt), "it came");
}

BOOST_AUTO_TEST_CASE(another_key_another_number_another_length_are_refused_and_disturb_nothing) {
    auto told = expect(2 * mib);
    BulkJob wrong = job();
    wrong.key = key_of(2);
    Status status = bulk_send(wrong);
    BOOST_TEST((status.code() == Code::permission_denied));
    wrong = job();
    wrong.transfer = 8;
    BOOST_TEST((bulk_send(wrong).code() == Code::unavailable));
    wrong = job();
    wrong.memory = wrong.memory.first(mib);
    BOOST_TEST((bulk_send(wrong).code() == Code::unavailable));
    Hand hand(server->port(), greeting_for(2 * mib), key_of(2));
    BOOST_TEST(hand.closed());
    BOOST_TEST((memory == std::vector<std::byte>(2 * mib)));
    BOOST_TEST(bulk_send(job()).ok());
    BOOST_TEST(outcome(told).ok());
    BOOST_TEST((memory == source));
}

BOOST_AUTO_TEST_CASE(blocks_elsewhere_twice_or_forged_end_the_transfer) {
    std::vector<std::uint8_t> data(bulk_block_bytes, 1);
    auto full = static_cast<std::uint32_t>(bulk_block_bytes);
    struct Case {
        const char *what;
        std::vector<BulkBlock> blocks;
    };
    const Case cases[] = {{"behind the end", {{2 * bulk_block_bytes, full, 0}}},
                          {"not at a block's start", {{1, full, 0, 0}}},
                          {"shorter than it should be", {{0, full - 1, 0, 0}}},
                          {"twice", {{0, full, 0, 0}, {0, full, 1, 0}}},
                          {"out of order", {{0, full, 1, 0}}},
                          {"with another checksum", {{0, full, 0, 77}}},
                          {"an end before all is there", {{0, full, 0, 0}, {0, 0, 1, 0}}}};
    for (const Case &c : cases) {
        auto told = expect(2 * bulk_block_bytes);
        Hand hand(server->port(), greeting_for(2 * bulk_block_bytes));
        BOOST_REQUIRE(hand.greeted());
        for (const BulkBlock &block : c.blocks)
            (void)hand.block(block, std::span(data).first(block.bytes)).ok();
        BOOST_TEST_CONTEXT(c.what) {
            BOOST_TEST((outcome(told).code() == Code::corrupt));
            BOOST_TEST(hand.closed());
        }
    }
}

BOOST_AUTO_TEST_CASE(a_header_without_the_key_ends_the_transfer) {
    auto told = expect(mib);
    Hand hand(server->port(), greeting_for(mib));
    BOOST_REQUIRE(hand.greeted());
    auto header = encode(BulkBlock{0, static_cast<std::uint32_t>(bulk_block_bytes), 0, 1});
    BOOST_TEST(hand.socket().write(header, BulkMac{}).ok());
    BOOST_TEST((outcome(told).code() == Code::permission_denied));
    BOOST_TEST((memory == std::vector<std::byte>(mib)));
}

BOOST_AUTO_TEST_CASE(a_stream_comes_once) {
    std::promise<void> joined;
    BulkTarget target;
    target.arrived = [&](std::uint16_t, std::uint64_t, std::uint64_t) { joined.set_value(); };
    auto told = expect(4 * mib, std::move(target));
    BulkGreeting greeting = greeting_for(4 * mib);
    greeting.streams = 2;
    Hand first(server->port(), greeting);
    std::vector<std::uint8_t> data(bulk_block_bytes);
    BOOST_TEST(first.block({0, static_cast<std::uint32_t>(bulk_block_bytes), 0, 0}, data).ok());
    BOOST_REQUIRE((joined.get_future().wait_for(long_time) == std::future_status::ready));
    Hand again(server->port(), greeting);
    BOOST_TEST(again.closed());
    greeting.streams = 3;
    greeting.stream = 1;
    Hand other_number(server->port(), greeting);
    BOOST_TEST(other_number.closed());
    server->forget(7);
    BOOST_TEST(first.closed());
}

BOOST_AUTO_TEST_CASE(who_says_nothing_is_not_waited_for) {
    BulkTarget target;
    target.stall = 100ms;
    auto told = expect(2 * mib, std::move(target));
    Hand mute(server->port(), greeting_for(2 * mib));  // proves itself, and no more
    BOOST_TEST((outcome(told).code() == Code::timeout));
    BulkServerOptions options;
    options.greeting_limit = 100ms;
    server = start(options);
    told = expect(2 * mib);
    auto start = Clock::now();
    BOOST_TEST(is_closed(connect_to(job().to)));
    BOOST_TEST((Clock::now() - start >= 50ms));
}

BOOST_AUTO_TEST_CASE(strangers_take_nobodys_place) {
    BulkServerOptions options;
    options.max_connections = 2;
    server = start(options);
    BOOST_TEST(is_closed(connect_to(job().to)));  // nobody is expected yet
    BulkTarget target;
    target.from = {*parse_address("::1"), *parse_address("127.0.0.2")};
    auto told = expect(mib, std::move(target));
    std::vector<UniqueFd> strangers;
    for (int i = 0; i < 8; ++i) strangers.push_back(connect_to(job().to));
    BOOST_TEST((bulk_send(job(1)).code() == Code::unavailable));
    BulkJob right = job(2);
    right.from = "127.0.0.2";
    Status status = bulk_send(right);
    BOOST_TEST(status.ok(), status.message());
    BOOST_TEST(outcome(told).ok());
}

BOOST_AUTO_TEST_CASE(who_is_expected_for_another_transfer_is_a_stranger_to_this_one) {
    BulkTarget target;
    target.from = {*parse_address("127.0.0.2")};
    auto told = expect(mib, std::move(target));
    std::vector<std::byte> room(mib);
    BulkTarget other;
    other.transfer = 8;
    other.key = key_of(2);
    other.memory = room;
    other.from = {*parse_address("127.0.0.1")};
    BOOST_REQUIRE(server->expect(std::move(other)).ok());
    BOOST_TEST((bulk_send(job()).code() == Code::unavailable));
    BOOST_TEST((memory == std::vector<std::byte>(mib)));
    BulkJob right = job();
    right.from = "127.0.0.2";
    BOOST_TEST(bulk_send(right).ok());
    BOOST_TEST(outcome(told).ok());
}

BOOST_AUTO_TEST_CASE(nobody_comes_before_the_deadline) {
    BulkTarget target;
    target.deadline = Clock::now() + 50ms;
    auto told = expect(mib, std::move(target));
    Status status = outcome(told);
    BOOST_TEST((status.code() == Code::timeout));
    BOOST_TEST(status.message() == "nobody sent it in time");
    BOOST_TEST(server->expect({.transfer = 7, .memory = memory}).ok());  // the number is free again
}

BOOST_AUTO_TEST_CASE(a_receiver_that_does_not_read_is_given_up) {
    auto listener = listen_on({.address = "127.0.0.1"});
    BOOST_REQUIRE(listener.ok());
    source = random_bytes(mib);
    BulkJob job = this->job(1);
    job.to.set_port(local_address(listener->get())->port());
    job.stall = 100ms;
    BOOST_TEST((bulk_send(job).code() == Code::timeout));
}

BOOST_AUTO_TEST_CASE(nobody_there) {
    source = random_bytes(mib);
    BulkJob job = this->job();
    {
        auto listener = listen_on({.address = "127.0.0.1"});
        job.to.set_port(local_address(listener->get())->port());
    }
    Status status = bulk_send(job);
    BOOST_TEST(!status.ok());
    BOOST_TEST(status.message().starts_with("connecting to 127.0.0.1: "));
}

BOOST_AUTO_TEST_CASE(a_sender_that_is_called_off_ends_on_both_sides) {
    auto told = expect(64 * mib);
    BulkJob job = this->job();
    job.cancellation = *Cancellation::create();
    auto sent = send_slowly(job, 8 * mib);
    job.cancellation->cancel();
    BOOST_TEST((sent.get().code() == Code::unavailable));
    BOOST_TEST((outcome(told).code() == Code::unavailable));
}

BOOST_AUTO_TEST_CASE(a_forgotten_transfer_leaves_its_memory_alone) {
    auto told = expect(64 * mib);
    auto sent = send_slowly(job(), 64 * mib);
    server->forget(7);
    std::vector<std::byte> as_it_was = memory;
    BOOST_TEST(!sent.get().ok());
    std::this_thread::sleep_for(20ms);
    BOOST_TEST((memory == as_it_was));
    BOOST_CHECK_THROW(told.get(), std::future_error);  // nobody was told
}

BOOST_AUTO_TEST_CASE(the_servers_end_ends_its_transfers) {
    auto told = expect(64 * mib);
    BulkJob job = this->job();
    job.rate = std::make_shared<RateLimit>(64 * mib);
    std::atomic<std::uint64_t> progress{0};
    job.progress = &progress;
    auto sent = std::async(std::launch::async, [job] { return bulk_send(job); });
    wait_for_start(progress);
    server.reset();
    BOOST_TEST(!sent.get().ok());
}

BOOST_AUTO_TEST_CASE(a_rate_is_kept) {
    auto told = expect(8 * mib);
    BulkJob job = this->job();
    job.rate = std::make_shared<RateLimit>(32 * mib);
    auto start = Clock::now();
    BOOST_TEST(bulk_send(job).ok());
    BOOST_TEST((Clock::now() - start >= 7.0s / 32));  // the last block is sent when the others' time is over
}

BOOST_AUTO_TEST_CASE(a_rate_is_kept_by_many_small_jobs_together) {
    auto rate = std::make_shared<RateLimit>(4 * mib);
    auto start = Clock::now();
    for (int i = 0; i < 9; ++i) {
        auto told = expect(mib / 8);
        BulkJob job = this->job();
        job.rate = rate;
        BOOST_TEST(bulk_send(job).ok());
        BOOST_TEST(outcome(told).ok());
    }
    BOOST_TEST((Clock::now() - start >= 1.0s / 4));  // the last one begins when the others' time is over
}

#ifndef DLROVER_SANITIZED
/// No more room for a thread's stack, until the end.
class NoThreads {
  public:
    NoThreads() {
        ::pthread_attr_init(&before_);
        ::pthread_getattr_default_np(&before_);
        pthread_attr_t large;
        ::pthread_attr_init(&large);
        ::pthread_attr_setstacksize(&large, 256 * mib);
        BOOST_REQUIRE(::pthread_setattr_default_np(&large) == 0);
        ::pthread_attr_destroy(&large);
        std::ifstream("/proc/self/statm") >> pages_;
        ::getrlimit(RLIMIT_AS, &limit_);
        rlimit low = limit_;
        low.rlim_cur = pages_ * 4096 + 128 * mib;
        BOOST_REQUIRE(::setrlimit(RLIMIT_AS, &low) == 0);
    }
    ~NoThreads() {
        ::setrlimit(RLIMIT_AS, &limit_);
        ::pthread_setattr_default_np(&before_);
        ::pthread_attr_destroy(&before_);
    }

  private:
    pthread_attr_t before_;
    rlimit limit_;
    std::uint64_t pages_ = 0;
};

/// As at the user's limit of processes, which counts threads.
BOOST_AUTO_TEST_CASE(without_a_thread_to_be_had_who_comes_is_closed_and_others_may_come_later) {
    auto told = expect(mib);
    {
        NoThreads none;
        BOOST_TEST((bulk_send(job(1)).code() == Code::unavailable));
    }
    BOOST_TEST(bulk_send(job(1)).ok());
    BOOST_TEST(outcome(told).ok());
}
#endif

BOOST_AUTO_TEST_CASE(more_connections_than_allowed_are_closed) {
    BulkServerOptions options;
    options.max_connections = 2;
    server = start(options);
    auto told = expect(mib);
    std::vector<UniqueFd> idle;
    for (int i = 0; i < 8; ++i) idle.push_back(connect_to(job().to));
    BOOST_TEST(is_closed(std::move(idle.back())));
    idle.clear();
    Status status;
    for (auto until = Clock::now() + 10s; Clock::now() < until; std::this_thread::sleep_for(10ms))
        if ((status = bulk_send(job(1))).ok()) break;
    BOOST_TEST(status.ok());
}

BOOST_AUTO_TEST_CASE(wrong_wishes_are_refused) {
    auto told = expect(mib);
    BulkTarget twice;
    twice.transfer = 7;
    twice.memory = memory;
    BOOST_TEST((server->expect(std::move(twice)).code() == Code::already_exists));
    BOOST_TEST((server->expect({.transfer = 9}).code() == Code::invalid_argument));
    BOOST_TEST((bulk_send(job(0)).code() == Code::invalid_argument));
    BOOST_TEST((bulk_send(job(max_bulk_streams + 1)).code() == Code::invalid_argument));
    BulkJob empty = job();
    empty.memory = {};
    BOOST_TEST((bulk_send(empty).code() == Code::invalid_argument));
}

BOOST_AUTO_TEST_SUITE_END()
