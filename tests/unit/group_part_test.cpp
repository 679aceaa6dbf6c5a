// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/group_part.h"

#include <boost/test/unit_test.hpp>

using namespace dlrover;
using namespace dlrover::pmix;

BOOST_AUTO_TEST_CASE(the_first_part_names_the_group) {
    proto::Bytes parts;
    append_part({7, {1, 2}}, parts);
    append_part({9, {}}, parts);
    append_part({8, {3}}, parts);
    auto all = join_parts(parts);
    BOOST_REQUIRE(all.ok());
    BOOST_TEST(all->context == 7u);
    BOOST_TEST(all->data == (proto::Bytes{1, 2, 3}));
}

BOOST_AUTO_TEST_CASE(what_is_no_row_of_parts_is_refused) {
    BOOST_TEST(!join_parts({}).ok());
    proto::Bytes parts;
    append_part({7, {1, 2}}, parts);
    for (std::size_t bytes = 1; bytes < parts.size(); ++bytes)
        BOOST_TEST(!join_parts(std::span(parts).first(bytes)).ok(), bytes);
    proto::Bytes more = parts;
    more.push_back(0);
    BOOST_TEST(!join_parts(more).ok());
    parts[8] = parts[15] = 0xff;  // says that it is longer
    BOOST_TEST(!join_parts(parts).ok());
}
