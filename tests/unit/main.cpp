// SPDX-License-Identifier: Apache-2.0
// The main() of every unit test program; the other files include boost/test/unit_test.hpp.
#define BOOST_TEST_MODULE dlrover
#include <boost/test/included/unit_test.hpp>
