// SPDX-License-Identifier: Apache-2.0
#include "agent/verifier.h"

#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <set>

#include "tests/unit/memory_object.h"

using namespace dlrover;
using namespace dlrover::agent;
using namespace dlrover::test;
using namespace std::chrono_literals;

namespace {

struct Verify {
    Result<std::unique_ptr<Loop>> created = Loop::create();
    std::unique_ptr<Loop> loop = std::move(*created);
    std::vector<local::ObjectVerifiedT> answers;
    std::size_t wanted = 1;
    Verifier verifier{*loop, [this](local::ObjectVerifiedT said) {
                          answers.push_back(std::move(said));
                          if (answers.size() == wanted) loop->stop();
                      }};
    MemoryObject object = make_object(7, 1, 2, 300000);

    local::VerifyObjectT message(std::uint64_t number) const {
        local::StoreObjectT same = object.order(checkpoint(7), 2, 1);
        local::VerifyObjectT order;
        order.order = number;
        order.checkpoint = std::move(same.checkpoint);
        order.rank = same.rank;
        order.segments = std::move(same.segments);
        order.data_bytes = same.data_bytes;
        order.table_offset = same.table_offset;
        order.table_bytes = same.table_bytes;
        order.table_xxh3 = same.table_xxh3;
        return order;
    }
    Status give(const local::VerifyObjectT &order) {
        std::vector<UniqueFd> fds;
        fds.emplace_back(::dup(object.memory.get()));
        return verifier.verify(order, std::move(fds));
    }
    void run(std::chrono::milliseconds at_most = 30s) {
        auto late = loop->after(at_most, [this] { loop->stop(); });
        loop->run();
        loop->cancel(late);
    }
    local::ObjectVerifiedT verify(const local::VerifyObjectT &order) {
        answers.clear();
        BOOST_REQUIRE(give(order).ok());
        run();
        BOOST_REQUIRE(answers.size() == 1u);
        return answers.front();
    }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(agent_verifier, Verify)

BOOST_AUTO_TEST_CASE(a_whole_object_is_verified) {
    auto answer = verify(message(5));
    BOOST_TEST(answer.ok, answer.text);
    BOOST_TEST(answer.order == 5u);
    BOOST_TEST(answer.bytes >= object.data_bytes);
}

BOOST_AUTO_TEST_CASE(a_flipped_bit_is_found_wherever_it_is) {
    for (std::uint64_t at : {std::uint64_t{0}, std::uint64_t{600000}, object.data_bytes - 1,
                             object.table_offset, object.table_offset + object.table_bytes - 1}) {
        object.flip(at);
        auto answer = verify(message(at + 1));
        BOOST_TEST(!answer.ok, "byte " << at);
        BOOST_TEST(answer.damaged, "byte " << at);
        object.flip(at);
    }
    BOOST_TEST(verify(message(1)).ok);
}

BOOST_AUTO_TEST_CASE(what_can_not_be_is_no_damage) {
    auto order = message(1);
    order.data_bytes += 1u << 30;
    BOOST_TEST(!verify(order).damaged);
    order = message(3);
    order.segments.front()->bytes += 1u << 20;
    BOOST_TEST(!verify(order).damaged);
    order = message(4);
    order.checkpoint.reset();
    BOOST_TEST(!give(order).ok());
}

BOOST_AUTO_TEST_CASE(many_are_verified_each_once) {
    wanted = 100;
    for (std::uint64_t number = 1; number <= wanted; ++number) BOOST_REQUIRE(give(message(number)).ok());
    run();
    std::set<std::uint64_t> numbers;
    for (const auto &answer : answers) {
        BOOST_TEST(answer.ok);
        numbers.insert(answer.order);
    }
    BOOST_TEST(numbers.size() == 100u);
}

BOOST_AUTO_TEST_CASE(what_is_cancelled_is_not_answered) {
    for (std::uint64_t number = 1; number <= 50; ++number) BOOST_REQUIRE(give(message(number)).ok());
    for (std::uint64_t number = 1; number <= 50; ++number) verifier.cancel(number);
    verifier.cancel(99);
    run(100ms);
    BOOST_TEST(answers.empty());
    BOOST_TEST(verify(message(1)).ok, "a number may come again");
}

BOOST_AUTO_TEST_CASE(no_answer_of_a_former_connection_comes) {
    object.flip(0);
    BOOST_REQUIRE(give(message(1)).ok());
    ::usleep(50000);  // it is done, or in work
    verifier.cancel_all();
    object.flip(0);
    BOOST_REQUIRE(give(message(1)).ok());
    run();
    BOOST_REQUIRE(answers.size() == 1u);
    BOOST_TEST(answers.front().ok);
}

BOOST_AUTO_TEST_CASE(it_may_end_in_the_middle) {
    for (std::uint64_t number = 1; number <= 50; ++number) BOOST_REQUIRE(give(message(number)).ok());
}

BOOST_AUTO_TEST_SUITE_END()
