// SPDX-License-Identifier: Apache-2.0
#include "daemon/slurm_client.h"

#include <boost/test/unit_test.hpp>
#include <condition_variable>
#include <mutex>

#include "common/manual_loop.h"
#include "daemon/memory_slurm.h"
#include "poll_loop.h"

using namespace dlrover;
using namespace dlrover::daemon;
using namespace std::chrono_literals;

namespace {

/// Calls that wait until the test opens the gate.
class GatedCalls final : public SlurmCalls {
  public:
    void open() {
        std::lock_guard lock(mutex_);
        open_ = true;
        changed_.notify_all();
    }
    unsigned calls() {
        std::lock_guard lock(mutex_);
        return calls_;
    }

    Result<std::vector<SlurmJob>> load_jobs_of(std::uint32_t) override { return std::vector<SlurmJob>{}; }
    Result<SlurmJob> load_job(JobId) override {
        pass();
        SlurmJob job;
        job.user = "ann";
        job.nodes = {"n1", "n2", "n3"};
        job.running = true;
        job.left = {left_mark(StepId(0), 1, "n2")};
        job.restart_count = requeues_;
        return job;
    }
    Result<SlurmStep> load_step(JobId, StepId) override { return Status(Code::not_found, "none"); }
    Result<std::vector<NodeAddress>> load_addresses(const std::vector<std::string> &nodes) override {
        return std::vector<NodeAddress>{{nodes.at(0), "10.0.0.1"}};
    }
    Status shrink_job(JobId, const std::vector<std::string> &survivors) override {
        pass();
        if (keeps_nodes_) return Status(Code::unsupported, "disable_job_shrink");
        shrunk_to = survivors;
        return {};
    }
    Status requeue_job(JobId) override {
        ++requeues_;
        return {};
    }
    void keep_nodes() { keeps_nodes_ = true; }
    std::vector<std::string> shrunk_to;  ///< to be read when an answer has come
    Result<bool> complete_headless(JobId, const HeadlessEnd &) override {
        return Status(Code::permission_denied, "no");
    }
    Result<JobId> submit_companion(const CompanionOrder &order) override {
        if (order.tasks == 0) return Status(Code::invalid_argument, "no");
        return JobId(order.job.value() + 100);
    }
    Result<Growth> grow_job(const CompanionOrder &) override { return Growth{"n9", 2}; }
    Result<std::vector<Companion>> load_companions(std::uint32_t, const std::string &) override {
        return std::vector<Companion>{};
    }
    Status mark_left(JobId, std::uint32_t, const std::vector<std::string> &) override { return {}; }
    Status mark_companion(JobId, const std::string &) override { return {}; }
    Status cancel_job(JobId) override { return {}; }
    Status drain_node(const std::string &, const std::string &) override { return {}; }
    Result<SiteCapabilities> load_site() override {
        SiteCapabilities site;
        site.version = "22.05.8";
        return site;
    }
    Result<Hastened> hasten_job(JobId, const HastenOrder &order) override {
        std::lock_guard lock(mutex_);
        orders_.push_back(order);
        if (orders_.size() < 3) return Status(Code::unavailable, "not yet");
        if (orders_.size() < 3 + ending_) return Hastened::ending;
        if (order.preferred.empty()) return Hastened::starts;
        if (refuses_) return Status(Code::invalid_argument, "Requested node configuration is not available");
        return early_ && !order.anyhow ? Hastened::too_early : Hastened::tied;
    }
    void let_nodes_end_late() { early_ = true; }
    void refuse_nodes() { refuses_ = true; }
    void end_for(unsigned looks) { ending_ = looks; }
    std::string cluster_name() override { return "lab"; }

    std::vector<HastenOrder> orders() {
        std::lock_guard lock(mutex_);
        return orders_;
    }

  private:
    void pass() {
        std::unique_lock lock(mutex_);
        ++calls_;
        changed_.wait(lock, [this] { return open_; });
    }
    std::mutex mutex_;
    std::condition_variable changed_;
    bool open_ = false;
    std::atomic<bool> early_ = false, refuses_ = false, keeps_nodes_ = false;
    std::atomic<std::uint32_t> requeues_ = 0;
    unsigned calls_ = 0;
    std::atomic<unsigned> ending_ = 0;
    std::vector<HastenOrder> orders_;
};

struct Fixture {
    test::PollLoop loop;
    std::shared_ptr<GatedCalls> calls = std::make_shared<GatedCalls>();
    QueuedSlurmClient client{loop,
                             calls,
                             {.timeout = 100ms,
                              .max_waiting = 4,
                              .hasten_pause = 1ms,
                              .hasten_tries = 10,
                              .hasten_often = 20,
                              .hasten_seldom = 2ms,
                              .preferred_patience = 30ms,
                              .excluded_patience = 100ms}};
    ~Fixture() { calls->open(); }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(slurm_client)

BOOST_AUTO_TEST_CASE(answers_come_on_the_loop_and_never_inside_the_call) {
    Fixture f;
    f.calls->open();
    std::string user;
    f.client.load_job(JobId(7), [&](Result<SlurmJob> job) { user = job->user; });
    BOOST_TEST(user.empty());
    BOOST_TEST(f.loop.run_until([&] { return !user.empty(); }));
    BOOST_TEST(user == "ann");
    BOOST_TEST(f.client.cluster_name() == "lab");
    Status done;
    f.client.complete_headless(JobId(7), {0, 1}, [&](Result<bool> over) { done = over.take_status(); });
    BOOST_TEST(f.loop.run_until([&] { return done.code() == Code::permission_denied; }));
}

BOOST_AUTO_TEST_CASE(a_slurm_that_hangs_is_answered_for_and_late_changes_are_not_made) {
    Fixture f;
    int answers = 0;
    Status first, second;
    f.client.load_job(JobId(7), [&](Result<SlurmJob> job) { ++answers, first = job.take_status(); });
    f.client.shrink_job(JobId(7), {"n1"}, [&](Status status) { ++answers, second = std::move(status); });
    BOOST_TEST(f.loop.run_until([&] { return answers == 2; }));
    BOOST_TEST((first.code() == Code::timeout));
    BOOST_TEST((second.code() == Code::timeout));
    BOOST_TEST(f.calls->calls() == 1u);
    f.calls->open();
    bool later = false;
    f.client.load_job(JobId(7), [&](Result<SlurmJob> job) { later = job.ok(); });
    BOOST_TEST(f.loop.run_until([&] { return later; }));
    BOOST_TEST(f.calls->calls() == 2u);  // the shrink was never made
    BOOST_TEST(answers == 2);
}

/// By which a group fences.
BOOST_AUTO_TEST_CASE(what_people_ask_waits_for_what_groups_want) {
    Fixture f;
    std::string order;
    auto note = [&](char who) { return [&order, who](const auto &) { order += who; }; };
    f.client.load_job(JobId(7), note('0'));
    BOOST_TEST(f.loop.run_until([&] { return f.calls->calls() == 1; }));
    f.client.load_jobs_of(1000, note('p'));
    f.client.load_job(JobId(7), note('p'), SlurmClient::Asker::person);
    f.client.load_addresses({"n1"}, note('p'), SlurmClient::Asker::person);
    f.client.shrink_job(JobId(7), {"n1"}, note('g'));
    f.client.load_job(JobId(7), note('g'));
    f.calls->open();
    BOOST_TEST(f.loop.run_until([&] { return order.size() == 6; }));
    BOOST_TEST(order == "0ggppp");
}

BOOST_AUTO_TEST_CASE(the_queue_is_bounded) {
    Fixture f;
    int unavailable = 0, others = 0;
    for (int i = 0; i < 20; ++i)
        f.client.load_job(JobId(7), [&](Result<SlurmJob> job) {
            ++(job.status().code() == Code::unavailable ? unavailable : others);
        });
    BOOST_TEST(f.loop.run_until([&] { return unavailable + others == 20; }));
    BOOST_TEST(unavailable >= 15);
    BOOST_TEST(others >= 4);
}

BOOST_AUTO_TEST_CASE(nothing_comes_after_the_end) {
    auto calls = std::make_shared<GatedCalls>();
    test::PollLoop loop;
    bool answered = false;
    {
        QueuedSlurmClient client(loop, calls, {.timeout = 20ms});
        client.load_job(JobId(7), [&](Result<SlurmJob>) { answered = true; });
        BOOST_TEST(loop.run_until([&] { return calls->calls() == 1; }));
    }
    calls->open();
    loop.run_for(50ms);
    BOOST_TEST(!answered);
}

BOOST_AUTO_TEST_CASE(a_requeued_job_is_hastened_when_it_waits) {
    Fixture f;
    f.calls->open();
    bool done = false;
    f.client.requeue_job(JobId(7), {"n1", "", {"n3"}}, [&](Status status) { done = status.ok(); });
    BOOST_TEST(f.loop.run_until([&] { return done; }));
    BOOST_TEST((f.calls->shrunk_to == std::vector<std::string>{"n1", "n2"}));
    // On what is left of its nodes; where it does not start there after all, on any.
    BOOST_TEST(f.loop.run_until([&] { return f.calls->orders().size() == 4; }));
    auto orders = f.calls->orders();
    for (const HastenOrder &order : orders) BOOST_TEST((order.excluded == std::vector<std::string>{"n3"}));
    BOOST_TEST((orders[2].preferred == std::vector<std::string>{"n1", "n2"}));
    BOOST_TEST(!orders[2].anyhow);
    BOOST_TEST(orders[3].preferred.empty());
    f.loop.run_for(50ms);
    BOOST_TEST(f.calls->orders().size() == 4u);
    // It may still wait, where there are too few others.
    BOOST_TEST(f.loop.run_until([&] { return f.calls->orders().size() == 5; }));
    BOOST_TEST(f.calls->orders().back().frees);
    BOOST_TEST(!f.calls->orders().back().hastens, "its time and its nodes are others' by now");
    BOOST_TEST(f.calls->orders().back().excluded.empty());
    for (const HastenOrder &order : f.calls->orders()) BOOST_TEST(order.restart_count == 1u);
    f.loop.run_for(150ms);
    BOOST_TEST(f.calls->orders().size() == 5u);
}

/// As where Slurm waits for SlurmdTimeout: however long that is.
BOOST_AUTO_TEST_CASE(a_job_whose_last_run_ends_late_is_hastened) {
    Fixture f;
    f.calls->open();
    f.calls->end_for(40);
    f.client.requeue_job(JobId(7), {"n1", "", {"n3"}}, [](const Status &) {});
    BOOST_TEST(f.loop.run_until([&] { return f.calls->orders().size() == 44; }));
    auto orders = f.calls->orders();
    BOOST_TEST((orders[42].preferred == std::vector<std::string>{"n1", "n2"}));
    BOOST_TEST(orders[43].preferred.empty());
}

BOOST_AUTO_TEST_CASE(a_job_that_slurm_does_not_tie_starts_anywhere) {
    Fixture f;
    f.calls->open();
    f.calls->refuse_nodes();
    f.client.requeue_job(JobId(7), {"n1", "", {"n3"}}, [](Status) {});
    BOOST_TEST(f.loop.run_until([&] { return f.calls->orders().size() == 4; }));
    auto orders = f.calls->orders();
    BOOST_TEST(!orders[2].preferred.empty());
    BOOST_TEST(orders[3].preferred.empty());
    BOOST_TEST((orders[3].excluded == std::vector<std::string>{"n3"}));
    f.loop.run_for(20ms);
    BOOST_TEST(f.calls->orders().size() == 4u);
}

BOOST_AUTO_TEST_CASE(a_requeued_job_waits_a_while_for_its_nodes) {
    Fixture f;
    f.calls->open();
    f.calls->let_nodes_end_late();
    auto began = std::chrono::steady_clock::now();
    f.client.requeue_job(JobId(7), {"n1", "", {"n3"}}, [](const Status &) {});
    auto last = [&] { return f.calls->orders().empty() ? HastenOrder{} : f.calls->orders().back(); };
    BOOST_TEST(f.loop.run_until([&] { return last().anyhow; }));
    BOOST_TEST((std::chrono::steady_clock::now() - began >= 30ms));
    BOOST_TEST((last().preferred == std::vector<std::string>{"n1", "n2"}));
    BOOST_TEST(f.loop.run_until([&] { return last().preferred.empty(); }));
}

/// As after a requeue, by another daemon than the one that asked for it.
BOOST_AUTO_TEST_CASE(a_job_that_was_requeued_before_is_hastened) {
    Fixture f;
    f.calls->open();
    bool done = false;
    f.client.hasten_job(JobId(7), {2, {"n3"}, {"n1", "n2"}},
                        [&](const Status &status) { done = status.ok(); });
    BOOST_TEST(f.loop.run_until([&] { return done && f.calls->orders().size() == 4; }));
    auto orders = f.calls->orders();
    BOOST_TEST((orders[2].preferred == std::vector<std::string>{"n1", "n2"}));
    BOOST_TEST((orders[2].excluded == std::vector<std::string>{"n3"}));
    BOOST_TEST(orders[2].frees, "what the run before was not to have is another matter");
    BOOST_TEST(orders[2].restart_count == 2u);
}

BOOST_AUTO_TEST_CASE(a_job_that_is_tied_to_nodes_is_freed) {
    Fixture f;
    f.calls->open();
    Code code = Code::ok;
    for (bool also_untie : {true, false}) {
        code = Code::ok;
        f.client.free_job(JobId(7), 3, also_untie, [&](const Status &status) { code = status.code(); });
        BOOST_TEST(f.loop.run_until([&] { return code == Code::unavailable; }));
        BOOST_TEST(f.calls->orders().back().preferred.empty());
        BOOST_TEST(f.calls->orders().back().frees);
        BOOST_TEST(f.calls->orders().back().hastens == also_untie);
        BOOST_TEST(f.calls->orders().back().restart_count == 3u);
    }
}

BOOST_AUTO_TEST_CASE(a_node_that_is_out_of_the_job_has_it_not_requeued) {
    Fixture f;
    f.calls->open();
    std::vector<Code> answers;
    auto ask = [&](const std::string &node, std::uint32_t run) {
        f.client.requeue_job(JobId(7), {node, left_mark(StepId(0), run, node), {"n3"}},
                             [&](Status status) { answers.push_back(status.code()); });
    };
    ask("n4", 1);  // Slurm has taken it out
    ask("n2", 1);  // the others go on without it
    BOOST_TEST(f.loop.run_until([&] { return answers.size() == 2; }));
    BOOST_TEST((answers == std::vector<Code>{Code::invalid_argument, Code::invalid_argument}));
    ask("n2", 2);  // that was another run's
    BOOST_TEST(f.loop.run_until([&] { return answers.size() == 3; }));
    BOOST_TEST((answers.back() == Code::ok));
}

/// Both sides of a cut may ask; the lost node can be in the job still.
BOOST_AUTO_TEST_CASE(a_run_is_requeued_once) {
    Fixture f;
    f.calls->open();
    f.calls->keep_nodes();
    std::vector<Code> answers;
    for (const char *asker : {"n1", "n3"})
        f.client.requeue_job(JobId(7), {asker, "", {"n2"}},
                             [&](const Status &status) { answers.push_back(status.code()); });
    BOOST_TEST(f.loop.run_until([&] { return answers.size() == 2; }));
    BOOST_TEST((answers == std::vector<Code>{Code::ok, Code::stale}));
    BOOST_TEST(f.calls->shrunk_to.empty());
    BOOST_TEST(f.loop.run_until([&] { return f.calls->orders().size() == 4; }));
    BOOST_TEST((f.calls->orders()[2].preferred == std::vector<std::string>{"n1", "n3"}));
}

BOOST_AUTO_TEST_CASE(the_twin_shrinks_as_slurm_does) {
    ManualLoop loop;
    MemorySlurm slurm(loop);
    SlurmJob job;
    job.running = true;
    job.nodes = {"n1", "n2", "n3"};
    job.batch_host = "n1";
    slurm.jobs[JobId(7)] = job;
    std::vector<Code> codes;
    auto shrink = [&](std::vector<std::string> survivors) {
        slurm.shrink_job(JobId(7), std::move(survivors), [&](const Status &s) { codes.push_back(s.code()); });
        loop.advance(10ms);
    };
    shrink({"n1", "n3"});
    shrink({"n1", "n2"});  // n2 is gone
    shrink({"n3"});        // the batch host must stay
    slurm.away = true;
    shrink({"n1"});
    BOOST_TEST((codes == std::vector<Code>{Code::ok, Code::invalid_argument, Code::invalid_argument,
                                           Code::unavailable}));
    BOOST_TEST(slurm.changes.size() == 1u);
    BOOST_TEST(slurm.changes.at(0) == "shrink 7 n1,n3");
}

/// What a daemon knows of Slurm may be old then.
BOOST_FIXTURE_TEST_CASE(a_slurm_that_was_away_is_noticed, Fixture) {
    int returns = 0, others = 0;
    client.on_return([&] { ++returns; });
    client.on_return([&] { ++others; });
    bool answered = false;
    client.load_job(JobId(7), [&](const Result<SlurmJob> &job) { answered = !job.ok(); });
    BOOST_TEST(loop.run_until([&] { return answered; }));
    calls->open();
    client.load_site([&](const Result<SiteCapabilities> &site) { answered = !site.ok(); });
    BOOST_TEST(loop.run_until([&] { return returns > 0; }));
    BOOST_TEST(!answered);
    client.load_site([&](const Result<SiteCapabilities> &) { answered = true; });
    BOOST_TEST(loop.run_until([&] { return answered; }));
    loop.run_for(5ms);
    BOOST_TEST(returns == 1);
    BOOST_TEST(others == 1);
}

BOOST_AUTO_TEST_SUITE_END()
