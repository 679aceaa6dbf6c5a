// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"

#include <boost/test/unit_test.hpp>

using dlrover::Code;
using dlrover::Result;
using dlrover::Status;

BOOST_AUTO_TEST_SUITE(status)

BOOST_AUTO_TEST_CASE(success_carries_nothing) {
    Status s;
    BOOST_TEST(s.ok());
    BOOST_TEST(s.message().empty());
    BOOST_TEST(s.to_string() == "ok");
}

BOOST_AUTO_TEST_CASE(failure_carries_code_and_context) {
    Status s = Status(Code::not_found, "no such group").with_context("status");
    BOOST_TEST(!s.ok());
    BOOST_TEST((s.code() == Code::not_found));
    BOOST_TEST(s.to_string() == "not found: status: no such group");
}

BOOST_AUTO_TEST_CASE(errno_becomes_a_code) {
    BOOST_TEST((Status::from_errno("open", ENOENT).code() == Code::not_found));
    BOOST_TEST((Status::from_errno("open", EACCES).code() == Code::permission_denied));
    BOOST_TEST(Status::from_errno("open", ENOENT).message() == "open: No such file or directory");
}

BOOST_AUTO_TEST_CASE(result_holds_value_or_reason) {
    Result<int> good(7);
    BOOST_TEST(*good == 7);
    Result<int> bad(Code::corrupt, "bits");
    BOOST_TEST(!bad.ok());
    BOOST_TEST(bad.status().message() == "bits");
}

BOOST_AUTO_TEST_SUITE_END()
