// SPDX-License-Identifier: Apache-2.0
#include "daemon/slurm_nodes.h"

#include <slurm/slurm.h>

#include <boost/test/unit_test.hpp>

using namespace dlrover::daemon;

namespace {

using Names = std::vector<std::string>;

bool is_early(std::uint32_t state) {
    return !pick_idle({{"n1", NODE_STATE_IDLE}, {"n2", state}}, false);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(slurm_nodes)

BOOST_AUTO_TEST_CASE(free_nodes_are_idle) {
    auto idle =
        pick_idle({{"n1", NODE_STATE_IDLE}, {"n2", NODE_STATE_MIXED}, {"n3", NODE_STATE_ALLOCATED}}, false);
    BOOST_TEST((idle == Names{"n1", "n2"}));
    BOOST_TEST((pick_idle({}, false) == Names{}));
}

BOOST_AUTO_TEST_CASE(a_node_that_still_ends_or_has_not_answered_is_worth_a_wait) {
    BOOST_TEST(is_early(NODE_STATE_IDLE | NODE_STATE_COMPLETING));
    BOOST_TEST(is_early(NODE_STATE_ALLOCATED | NODE_STATE_COMPLETING));
    BOOST_TEST(is_early(NODE_STATE_IDLE | NODE_STATE_NO_RESPOND));
    auto idle = pick_idle({{"n1", NODE_STATE_IDLE | NODE_STATE_NO_RESPOND}, {"n2", NODE_STATE_IDLE}}, true);
    BOOST_TEST((idle == Names{"n2"}));
}

BOOST_AUTO_TEST_CASE(nobody_waits_for_a_node_that_will_not_come) {
    constexpr std::uint32_t gone[] = {NODE_STATE_DOWN,
                                      NODE_STATE_DOWN | NODE_STATE_NO_RESPOND,
                                      NODE_STATE_DOWN | NODE_STATE_COMPLETING,
                                      NODE_STATE_IDLE | NODE_STATE_DRAIN,
                                      NODE_STATE_ALLOCATED | NODE_STATE_DRAIN | NODE_STATE_COMPLETING,
                                      NODE_STATE_IDLE | NODE_STATE_FAIL};
    for (std::uint32_t state : gone) {
        BOOST_TEST_CONTEXT("state " << state) {
            BOOST_TEST((pick_idle({{"n1", NODE_STATE_IDLE}, {"n2", state}}, false) == Names{"n1"}));
        }
    }
}

BOOST_AUTO_TEST_SUITE_END()
