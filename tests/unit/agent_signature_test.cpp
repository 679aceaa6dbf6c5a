// SPDX-License-Identifier: Apache-2.0
#include "agent/signature.h"

#include <boost/test/unit_test.hpp>

using namespace dlrover::agent;

namespace {

constexpr int failed = 1 << 8;

std::string traceback(const std::string &line, const std::string &exception) {
    return "noise\nTraceback (most recent call last):\n  File \"train.py\", line 9, in <module>\n    "
           "main()\n  File "
           "\"train.py\", line " +
           line + ", in step\n    loss.backward()\n    ~~~~~^^^^\n" + exception + "\n";
}

std::uint64_t signature(const std::string &text, int status = failed) {
    return describe_failure(status, "", text).signature;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(agent_signature)

BOOST_AUTO_TEST_CASE(same_place_same_number) {
    auto first = signature(traceback("5", "RuntimeError: bad value 17 at 0x7f00deadbeef"));
    BOOST_TEST(first == signature(traceback("5", "RuntimeError: bad value 18 at 0x7f11deadbeef")));
    BOOST_TEST(first != signature(traceback("6", "RuntimeError: bad value 17 at 0x7f00deadbeef")));
    BOOST_TEST(first != signature(traceback("5", "ValueError: bad value 17 at 0x7f00deadbeef")));
    BOOST_TEST(first != signature(traceback("5", "RuntimeError: bad value 17 at 0x7f00deadbeef"), 9));
    BOOST_TEST(first != 0u);
}

BOOST_AUTO_TEST_CASE(the_last_traceback_counts_and_what_follows_does_not) {
    std::string both = traceback("1", "KeyError: 'a'") + "\nDuring handling of the above exception\n" +
                       traceback("2", "ValueError: b");
    BOOST_TEST(signature(both) == signature(traceback("2", "ValueError: b")));
    BOOST_TEST(signature(both) == signature(both + "terminate called\nlast words 123\n"));
    BOOST_TEST(traceback_place(both) == "  File \"train.py\", line 2, in step\nValueError: b");
    BOOST_TEST(traceback_place("Traceback (most recent call last)").empty());
}

BOOST_AUTO_TEST_CASE(without_traceback_the_last_line_counts) {
    BOOST_TEST(signature("start\nfatal: rank 3 lost 12 items\n\n") ==
               signature("fatal: rank 7 lost 9 items"));
    BOOST_TEST(signature("fatal: no memory") != signature("fatal: no disk"));
    BOOST_TEST(signature("") == signature("\n \n"));
}

BOOST_AUTO_TEST_CASE(normalised) {
    BOOST_TEST(normalise_line("rank 12 at 0x7fFF,  id deadbeef12 [3/4]") == "rank # at #, id # [#/#]");
    BOOST_TEST(normalise_line("face decade accede") == "face decade accede");
}

BOOST_AUTO_TEST_CASE(the_error_file_comes_first) {
    std::string json =
        R"({"message": {"message": "RuntimeError: \"x\" fell", "extraInfo": {"py_callstack": )"
        R"("Traceback (most recent call last):\n  File \"a.py\", line 3, in f\nRuntimeError: \"x\" \u00e9\n", )"
        R"("timestamp": "1"}}})";
    auto report = describe_failure(failed, json, traceback("5", "ValueError: other"));
    BOOST_TEST(report.text ==
               "Traceback (most recent call last):\n  File \"a.py\", line 3, in f\nRuntimeError: \"x\" ?\n");
    BOOST_TEST(report.signature == describe_failure(failed, json, "").signature);
    auto plain = describe_failure(failed, R"({"message": "it fell"})", "noise");
    BOOST_TEST(plain.text == "it fell");
}

BOOST_AUTO_TEST_CASE(broken_error_files_do_no_harm) {
    for (const char *json : {"", "{", "\"message\"", "{\"message\": \"", "{\"message\": \"\\",
                             "{\"message\":\"\\u12", "{\"py_callstack\": 3, \"message\": {}}"})
        BOOST_TEST(describe_failure(failed, json, "last words").signature != 0u);
    BOOST_TEST(json_string("{\"message\": {\"message\" : \"in\"}}", "message") == "in");
}

BOOST_AUTO_TEST_CASE(the_text_is_bounded) {
    std::string lines;
    for (int i = 0; i < 5000; ++i) lines += "line " + std::to_string(i) + "\n";
    auto report = describe_failure(failed, "", lines);
    BOOST_TEST(report.text.size() <= max_error_text_bytes);
    BOOST_TEST(report.text.ends_with("line 4999\n"));
    BOOST_TEST(report.text.starts_with("line "));
}

BOOST_AUTO_TEST_SUITE_END()
