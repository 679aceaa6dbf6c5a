// SPDX-License-Identifier: Apache-2.0
#include "proto/allocation_words.h"

#include <boost/test/unit_test.hpp>

using namespace dlrover;
using namespace dlrover::proto;

namespace {

using Verb = AllocationOrder::Verb;
using Stage = AllocationState::Stage;
using Words = std::vector<std::string>;

AllocationOrder new_order() {
    AllocationOrder order;
    order.job = JobId(57);
    order.step = StepId(0);
    order.nodes = 2;
    return order;
}

bool is_refused(const Words &words) {
    return decode_order(words).status().code() == Code::invalid_argument;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(allocation_words)

BOOST_AUTO_TEST_CASE(orders_come_back_as_they_were) {
    auto order = new_order();
    BOOST_TEST((encode_order(order) == Words{"new", "57", "0", "2"}));
    order.seconds = 90;
    order.partition = "long,debug";
    order.label = "for the tests = \"2\"";
    auto back = decode_order(encode_order(order));
    BOOST_REQUIRE(back.ok());
    BOOST_TEST((back->verb == Verb::create && back->job == JobId(57) && back->step == StepId(0)));
    BOOST_TEST((back->nodes == 2u && back->seconds == 90u));
    BOOST_TEST(back->partition == order.partition);
    BOOST_TEST(back->label == order.label);
    order.verb = Verb::release;
    order.allocation = JobId(58);
    BOOST_TEST((encode_order(order) == Words{"release", "57", "58"}));
    auto status = decode_order({"status", "57", "58"});
    BOOST_REQUIRE(status.ok());
    BOOST_TEST((status->verb == Verb::status && status->allocation == JobId(58)));
}

BOOST_AUTO_TEST_CASE(what_is_no_order_is_refused) {
    const Words none[] = {{},
                          {"new"},
                          {"old", "57", "0", "2"},
                          {"new", "57", "0"},
                          {"new", "0", "0", "2"},
                          {"new", "57", "-1", "2"},
                          {"new", "57", "0", "0"},
                          {"new", "57", "0", "16385"},
                          {"new", "57", "0", "2 "},
                          {"new", "57", "0", "2", "--nice"},
                          {"new", "57", "0", "2", "seconds=0"},
                          {"new", "57", "0", "2", "seconds=4294967296"},
                          {"new", "57", "0", "2", "partition="},
                          {"new", "57", "0", "2", "partition=a b"},
                          {"new", "57", "0", "2", "label=a\nb"},
                          {"new", "57", "0", "2", "uid=0"},
                          {"release", "57"},
                          {"release", "57", "0"},
                          {"release", "57", "4294967294"},  // NO_VAL
                          {"status", "57", "58", "59"}};
    for (const Words &words : none) BOOST_TEST(is_refused(words), (words.empty() ? "" : words.back()));
    BOOST_TEST(is_refused({"new", "57", "0", "2", "label=" + std::string(65, 'x')}));
    BOOST_TEST(is_refused({"new", "57", "0", "2", "partition=" + std::string(257, 'x')}));
}

BOOST_AUTO_TEST_CASE(answers_come_back_as_they_were) {
    const AllocationState states[] = {{Stage::waiting, JobId(58)},
                                      {Stage::waiting, JobId(58), "Resources"},
                                      {Stage::running, JobId(58), "n3,n4"},
                                      {Stage::ended, JobId(58)}};
    for (const auto &state : states) {
        auto back = find_answer("slurm says something\n" + encode_answer(state) + "answer ended 1 \n");
        BOOST_REQUIRE((back && back->ok()));
        BOOST_TEST(((*back)->stage == state.stage && (*back)->job == state.job));
        BOOST_TEST((*back)->words == state.words);
    }
    for (Code code : {Code::invalid_argument, Code::not_found, Code::permission_denied, Code::unavailable,
                      Code::timeout, Code::resource_exhausted, Code::internal}) {
        auto back = find_answer(encode_answer(Status(code, "a new allocation:\nrefused")));
        BOOST_REQUIRE((back && !back->ok()));
        BOOST_TEST((back->status().code() == code));
        BOOST_TEST(back->status().message() == "a new allocation: refused");
    }
    auto other = find_answer(encode_answer(Status(Code::system, "?")));
    BOOST_TEST((other && other->status().code() == Code::internal));
}

BOOST_AUTO_TEST_CASE(rubbish_is_no_answer) {
    BOOST_TEST(!find_answer("").has_value());
    BOOST_TEST(!find_answer("answer waiting 58").has_value());  // not whole
    BOOST_TEST(!find_answer(" answer waiting 58 \nanswers\n").has_value());
    for (const char *line :
         {"answer \n", "answer waiting\n", "answer waiting x\n", "answer running 0 n1\n", "answer refused\n",
          "answer refused nothing\n", "answer waiting 4294967296 \n"}) {
        auto found = find_answer(line);
        BOOST_TEST((found && found->status().code() == Code::corrupt), line);
    }
    BOOST_TEST(last_words("one\ntwo\tthree\n\n") == "two three");
    BOOST_TEST(last_words("") == "");
    BOOST_TEST(last_words(std::string(5000, 'x')).size() == 1000u);
}

BOOST_AUTO_TEST_SUITE_END()
