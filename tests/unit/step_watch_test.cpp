// SPDX-License-Identifier: Apache-2.0
#include "daemon/step_watch.h"

#include <boost/test/unit_test.hpp>

using namespace dlrover;
using namespace dlrover::daemon;
using proto::local::Outcome;

namespace {

/// A Slurm with one job of nodes n1 to n3 and one step on all of them.
class OneJob final : public SlurmCalls {
  public:
    SlurmJob job;
    bool step_there = true, away = false;
    unsigned asked = 0;

    OneJob() {
        job.running = true;
        job.nodes = {"n1", "n2", "n3"};
    }
    void lose_node() { job.nodes = {"n1", "n3"}; }

    Result<SlurmJob> load_job(JobId) override {
        ++asked;
        if (away) return Status(Code::unavailable, "slurmctld is away");
        return job;
    }
    Result<SlurmStep> load_step(JobId, StepId) override {
        ++asked;
        if (away) return Status(Code::unavailable, "slurmctld is away");
        if (!step_there) return Status(Code::not_found, "no such step");
        return SlurmStep{job, {"n1", "n2", "n3"}};
    }
    Result<std::vector<SlurmJob>> load_jobs_of(std::uint32_t) override { return refuse(); }
    Result<std::vector<NodeAddress>> load_addresses(const std::vector<std::string> &) override {
        return refuse();
    }
    Status shrink_job(JobId, const std::vector<std::string> &) override { return refuse(); }
    Status requeue_job(JobId) override { return refuse(); }
    Status drain_node(const std::string &, const std::string &) override { return refuse(); }
    Result<SiteCapabilities> load_site() override { return refuse(); }
    Result<bool> complete_headless(JobId, const HeadlessEnd &) override { return refuse(); }
    Result<JobId> submit_companion(const CompanionOrder &) override { return refuse(); }
    Result<Growth> grow_job(const CompanionOrder &) override { return refuse(); }
    Result<std::vector<Companion>> load_companions(std::uint32_t, const std::string &) override {
        return refuse();
    }
    Status mark_left(JobId, std::uint32_t, const std::vector<std::string> &) override { return refuse(); }
    Status mark_companion(JobId, const std::string &) override { return refuse(); }
    Status cancel_job(JobId) override { return refuse(); }
    Result<Hastened> hasten_job(JobId, const HastenOrder &) override { return refuse(); }
    std::string cluster_name() override { return ""; }

  private:
    static Status refuse() {
        BOOST_ERROR("a watch only looks at its job and step");
        return Status(Code::invalid_argument, "no");
    }
};

struct Fixture {
    OneJob slurm;
    proto::local::OutcomeReplyT group;
    bool daemon = false, relayed = false;
    StepWatch::Time now{};
    StepWatch watch{JobId(7), StepId(1), [this](bool relay) -> Result<proto::local::OutcomeReplyT> {
                        relayed = relay;
                        if (!daemon) return Status(Code::unavailable, "no daemon");
                        return group;
                    }};
    bool look() {
        now += std::chrono::seconds(5);
        return watch.look(slurm, now);
    }
    bool look(int times) {
        bool over = false;
        for (int i = 0; i < times; ++i) over = look() || over;
        return over;
    }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(step_watch)

BOOST_AUTO_TEST_CASE(a_step_that_lost_a_node_is_over_when_two_looks_miss_it) {
    Fixture f;
    BOOST_TEST(!f.look(2));
    f.slurm.lose_node();
    BOOST_TEST(!f.look(3));
    f.slurm.step_there = false;
    BOOST_TEST(!f.look());
    BOOST_TEST(f.look());
}

BOOST_AUTO_TEST_CASE(the_loss_is_also_seen_when_the_step_is_gone) {
    Fixture f;
    BOOST_TEST(!f.look());
    f.slurm.lose_node();
    f.slurm.step_there = false;
    BOOST_TEST(!f.look());
    BOOST_TEST(f.look());
}

BOOST_AUTO_TEST_CASE(a_step_that_lost_no_node_is_left_to_srun) {
    Fixture f;
    f.look();
    f.slurm.step_there = false;
    BOOST_TEST(!f.look(10));
    f.slurm.job.running = false;
    f.slurm.job.nodes.clear();  // requeued: it waits, and has no nodes
    BOOST_TEST(!f.look(10));
}

BOOST_AUTO_TEST_CASE(a_step_that_was_never_seen_is_never_over) {
    Fixture f;
    f.slurm.step_there = false;
    f.slurm.lose_node();
    BOOST_TEST(!f.look(10));
}

BOOST_AUTO_TEST_CASE(a_slurm_that_is_away_is_no_sign) {
    Fixture f;
    f.slurm.away = true;
    BOOST_TEST(!f.look(3));
    f.slurm.away = false;
    f.look();
    f.slurm.lose_node();
    f.slurm.step_there = false;
    f.slurm.away = true;
    BOOST_TEST(!f.look(3));
    f.slurm.away = false;
    BOOST_TEST(!f.look());
    f.slurm.away = true;
    BOOST_TEST(!f.look(3));
    f.slurm.away = false;
    BOOST_TEST(!f.look());  // the first of two anew
    BOOST_TEST(f.look());
}

BOOST_AUTO_TEST_CASE(one_question_at_a_look_while_all_nodes_are_there) {
    Fixture f;
    f.look();
    f.slurm.asked = 0;
    f.look(10);
    BOOST_TEST(f.slurm.asked == 10u);
    BOOST_TEST((f.watch.pause() == std::chrono::seconds(10)));
    f.slurm.lose_node();
    f.look();
    BOOST_TEST((f.watch.pause() == std::chrono::seconds(5)));
}

BOOST_AUTO_TEST_CASE(slurm_is_hardly_asked_while_the_daemon_says_that_all_nodes_are_there) {
    Fixture f;
    f.daemon = true;
    f.group.outcome = Outcome::Running;
    f.look(2);
    f.slurm.asked = 0;
    f.look(60);  // 5 minutes
    BOOST_TEST(f.slurm.asked == 5u);
    f.daemon = false;
    f.look(4);
    BOOST_TEST(f.slurm.asked == 9u, "without its word Slurm is asked each time");
    f.daemon = true;
    f.slurm.lose_node();
    f.slurm.step_there = false;
    BOOST_TEST(!f.look(12), "a node that is lost to Slurm alone is seen within a minute");
    BOOST_TEST(f.look(2));
}

/// It missed the end of a task, on a node that is gone, or while slurmctld was away.
BOOST_AUTO_TEST_CASE(a_slurm_that_keeps_the_step_is_not_waited_for_long) {
    for (bool away : {false, true}) {
        Fixture f;
        f.daemon = true;
        f.group.outcome = Outcome::Running;
        BOOST_TEST(!f.look(3));
        f.group.lost = 1;
        BOOST_TEST(!f.look(20));
        f.slurm.away = away;
        f.group.outcome = Outcome::Over;
        BOOST_TEST(!f.look(6));
        BOOST_TEST(f.look());
    }
}

BOOST_AUTO_TEST_CASE(a_group_that_lost_no_node_is_left_to_srun) {
    Fixture f;
    f.daemon = true;
    f.group.outcome = Outcome::Over;
    BOOST_TEST(!f.look(20));
}

BOOST_AUTO_TEST_CASE(others_are_asked_for_a_node_that_is_out_of_its_group) {
    Fixture f;
    f.daemon = true;
    BOOST_TEST(!f.look(3));
    BOOST_TEST(!f.relayed, "srun runs on a node without a part in it");
    f.group.outcome = Outcome::Running;
    f.look(2);
    BOOST_TEST(f.relayed);
    f.group.outcome = Outcome::Over;
    f.group.lost = 1;
    f.slurm.step_there = false;
    BOOST_TEST(!f.look());
    BOOST_TEST(f.look());
}

BOOST_AUTO_TEST_SUITE_END()
