// SPDX-License-Identifier: Apache-2.0
#include "pmix_server/allocation.h"

#include <boost/test/unit_test.hpp>
#include <vector>

using namespace dlrover;
using namespace dlrover::pmix;

namespace {

constexpr pmix_status_t taken = PMIX_SUCCESS, wrong = PMIX_ERR_BAD_PARAM, unknown = PMIX_ERR_NOT_SUPPORTED;

class Infos {
  public:
    template <typename T>
    Infos &add(const char *key, const T &value, pmix_data_type_t type) {
        PMIX_INFO_LOAD(&all_.emplace_back(), key, &value, type);
        return *this;
    }
    pmix_status_t parse(pmix_alloc_directive_t directive, Allocation &out) const {
        return parse_allocation(directive, all_, out);
    }

  private:
    std::vector<pmix_info_t> all_;
};

pmix_status_t parse(pmix_alloc_directive_t directive, std::uint64_t nodes, Allocation &out) {
    return Infos().add(PMIX_ALLOC_NUM_NODES, nodes, PMIX_UINT64).parse(directive, out);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(allocations)

BOOST_AUTO_TEST_CASE(a_number_of_nodes_is_taken) {
    Allocation out;
    BOOST_TEST(parse(PMIX_ALLOC_EXTEND, 2, out) == taken);
    BOOST_TEST((out.more == 2u && out.fewer == 0u));
    BOOST_TEST(parse(PMIX_ALLOC_RELEASE, 16384, out) == taken);
    BOOST_TEST((out.more == 0u && out.fewer == 16384u));
    BOOST_TEST(Infos()
                   .add("some.key", 1, PMIX_INT)
                   .add(PMIX_ALLOC_NUM_NODES, 3, PMIX_INT)
                   .parse(PMIX_ALLOC_EXTEND, out) == taken);
    BOOST_TEST(out.more == 3u);
}

BOOST_AUTO_TEST_CASE(what_is_no_number_of_nodes_is_refused) {
    Allocation out;
    BOOST_TEST(parse(PMIX_ALLOC_EXTEND, 0, out) == wrong);
    BOOST_TEST(parse(PMIX_ALLOC_EXTEND, 16385, out) == wrong);
    BOOST_TEST(Infos().parse(PMIX_ALLOC_EXTEND, out) == wrong);
    BOOST_TEST(Infos().add(PMIX_ALLOC_NUM_NODES, -1, PMIX_INT).parse(PMIX_ALLOC_EXTEND, out) == wrong);
    BOOST_TEST(Infos().add(PMIX_ALLOC_NUM_NODES, 1.0, PMIX_DOUBLE).parse(PMIX_ALLOC_EXTEND, out) == wrong);
    BOOST_TEST(parse(PMIX_ALLOC_NEW, 1, out) == unknown);
    BOOST_TEST(parse(PMIX_ALLOC_REAQUIRE, 1, out) == unknown);
    std::uint32_t hour = 3600;
    BOOST_TEST(Infos()
                   .add(PMIX_ALLOC_NUM_NODES, 1, PMIX_INT)
                   .add(PMIX_ALLOC_TIME, hour, PMIX_UINT32)
                   .parse(PMIX_ALLOC_EXTEND, out) == unknown);
}

BOOST_AUTO_TEST_CASE(answers_are_errors_that_fit) {
    using State = proto::local::ScaleState;
    Allocation more{1, 0}, fewer{0, 1};
    BOOST_TEST(allocation_status(State::Taken, more) == PMIX_SUCCESS);
    BOOST_TEST(allocation_status(State::OutOfLimits, more) == PMIX_ERR_OUT_OF_RESOURCE);
    BOOST_TEST(allocation_status(State::OutOfLimits, fewer) == PMIX_ERR_BAD_PARAM);
    BOOST_TEST(allocation_status(State::Unable, fewer) == PMIX_ERR_NOT_SUPPORTED);
    BOOST_TEST(allocation_status(State::NotNow, fewer) == PMIX_ERR_RESOURCE_BUSY);
}

BOOST_AUTO_TEST_SUITE_END()
