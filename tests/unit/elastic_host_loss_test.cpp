// SPDX-License-Identifier: Apache-2.0
// The batch host is lost, and the job is to be requeued for it (--dlrover-on-batch-loss=requeue).
#include <boost/test/unit_test.hpp>

#include "tests/unit/elastic_group.h"

using namespace dlrover;
using namespace dlrover::elastic;
using namespace std::chrono_literals;

namespace {

constexpr auto requeue = AskSlurm::What::requeue;

struct Fixture {
    explicit Fixture(std::uint32_t nodes = 4) : g(config(nodes)) {
        for (std::uint32_t i = 0; i < nodes; ++i) g.job_nodes.emplace_back(i);
        g.start();
    }
    static GroupConfig config(std::uint32_t nodes) {
        GroupConfig c = TestGroup::config(nodes, 1, nodes);
        c.requeues_without_host = true;
        return c;
    }
    TestGroup g;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(host_loss)

BOOST_AUTO_TEST_CASE(the_job_is_requeued_and_its_checkpoints_are_kept) {
    Fixture f;
    f.g.cut(0);
    f.g.run(5s);
    BOOST_TEST(f.g.count_asked(requeue) == 1u);
    BOOST_TEST(f.g.count_asked(AskSlurm::What::leave_behind) == 0u);
    for (std::uint32_t node : {1u, 2u, 3u}) {
        BOOST_TEST_REQUIRE(f.g.count<End>(node) == 1u);
        End end = f.g.actions<End>(node)[0];
        BOOST_TEST((end.next_run == NextRun::comes));
        BOOST_TEST((end.excluded == nodes({0})));
        BOOST_TEST(end.message == "the batch host is lost: the job was requeued");
    }
}

BOOST_AUTO_TEST_CASE(the_other_of_two_nodes_has_it_requeued) {
    Fixture f(2);
    f.g.crash(0);
    f.g.run(30s);
    BOOST_TEST(f.g.count_asked(requeue) == 1u);
    BOOST_TEST_REQUIRE(f.g.count<End>(1) == 1u);
    BOOST_TEST((f.g.actions<End>(1)[0].next_run == NextRun::comes));
}

BOOST_AUTO_TEST_CASE(another_node_is_replaced_as_ever) {
    Fixture f;
    f.g.cut(3);
    f.g.run(5s);
    BOOST_TEST(f.g.count_asked(requeue) == 0u);
    BOOST_TEST((f.g.world(1).nodes == nodes({0, 1, 2})));
}

/// Other nodes go first: that is a question that only one side can win.
BOOST_AUTO_TEST_CASE(with_another_node) {
    Fixture f(5);
    f.g.cut(0);
    f.g.cut(4);
    f.g.run(6s);
    auto first = [&](AskSlurm::What what) { return std::ranges::find(f.g.asked, what, &AskSlurm::what); };
    BOOST_TEST_REQUIRE((first(requeue) != f.g.asked.end()));
    BOOST_TEST((first(AskSlurm::What::shrink_to) < first(requeue)));
    BOOST_TEST((first(requeue)->nodes == nodes({0, 4})));
}

BOOST_AUTO_TEST_CASE(where_slurm_refuses_the_group_goes_on) {
    Fixture f;
    f.g.no_requeue = true;
    f.g.cut(0);
    f.g.run(8s);
    BOOST_TEST(f.g.count_asked(requeue) == 2u);
    BOOST_TEST((f.g.world(1).nodes == nodes({1, 2, 3})));
    BOOST_TEST(f.g.count<End>(1) == 0u);
    f.g.run(60s);
    BOOST_TEST(f.g.count_asked(requeue) == 2u);
}

/// Slurm's word decides. Until it comes the others train.
BOOST_AUTO_TEST_CASE(where_slurm_does_not_answer_the_group_goes_on_until_it_does) {
    Fixture f;
    f.g.slurm = SlurmAnswer::Result::unreachable;
    f.g.cut(0);
    f.g.run(10s);
    BOOST_TEST((f.g.world(1).nodes == nodes({1, 2, 3})));
    BOOST_TEST(f.g.count<End>(1) == 0u);
    f.g.slurm = SlurmAnswer::Result::done;
    f.g.run(5s);
    BOOST_TEST(f.g.count_asked(requeue) == 1u);
    BOOST_TEST(f.g.count<End>(1) == 1u);
}

BOOST_AUTO_TEST_CASE(where_slurm_has_given_the_host_up_before_it_is_asked) {
    Fixture f;
    f.g.slurm = SlurmAnswer::Result::unreachable;
    f.g.cut(0);
    f.g.run(10s);
    f.g.job_nodes = nodes({1, 2, 3});
    f.g.slurm = SlurmAnswer::Result::done;
    f.g.run(5s);
    BOOST_TEST(f.g.count_asked(requeue) == 1u);
    BOOST_TEST(f.g.count<End>(1) == 1u);
}

BOOST_AUTO_TEST_SUITE_END()
