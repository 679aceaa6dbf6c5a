// SPDX-License-Identifier: Apache-2.0
// Checkpoints on their way to storage: two daemons, and writers that say what the test tells them.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <csignal>

#include "daemon/wall_clock.h"
#include "tests/unit/daemon_movers.h"
#include "tests/unit/daemon_nodes.h"
#include "tests/unit/daemon_writers.h"

using namespace dlrover;
using namespace dlrover::daemon;
using namespace dlrover::daemon::test;
using namespace std::chrono_literals;

namespace {

struct Fixture : TwoNodes {
    std::unique_ptr<Writer> d1, d2;

    explicit Fixture(std::uint64_t every, const std::function<void(Fixture &)> &before = {},
                     const std::string &redundancy = "single")
        : TwoNodes({.ckpt_dir = "/data/run", .ckpt_every_steps = every, .redundancy = redundancy}) {
        d1 = std::make_unique<Writer>(n1);
        d2 = std::make_unique<Writer>(n2);
        if (before) before(*this);
    }
    void pump() override {
        d1->pump();
        d2->pump();
    }
    /// The daemons fall one after the other and come back; the workers live on.
    void restart_daemons() {
        GenerationId running{Term(w1.generation->term()), w1.generation->number()};
        for (auto [node, agent, writer] : {std::tuple(&n1, &a1, &*d1), std::tuple(&n2, &a2, &*d2)}) {
            node->restart();
            loop.advance(100ms);
            *agent = node->start_agent(alice, running);
            writer->connect();
            run(1s);
        }
        run(5s);
    }
    /// Of rank 0's node.
    std::size_t told(const std::string &text) { return count_events(home().node, text); }
    /// The writer of rank 0's node, which makes checkpoints complete, and the other.
    Writer &home() { return w1.first_rank == 0 ? *d1 : *d2; }
    Writer &other() { return w1.first_rank == 0 ? *d2 : *d1; }
    void finish_all() {
        for (std::uint16_t rank : {0, 1}) {
            n1.exited(a1, w1, rank, 0);
            n2.exited(a2, w2, rank, 0);
        }
    }
    bool ended(Node &node, const Client &agent) {
        return node.port->take<local::GroupEndedT>(agent.id).has_value();
    }
    /// Storage answers the writers, but does nothing whole.
    void run_slowly(std::chrono::seconds time) {
        for (; time > 0s; time -= 1s) {
            for (Writer *d : {d1.get(), d2.get()}) d->say_storage_answers();
            run(1s);
        }
    }
    /// As `dlrover status` of that node says, which asks the other.
    std::unique_ptr<local::StorageStatusT> storage_at(Node &node) {
        return std::move(status_at(node, alice).groups.at(0)->storage);
    }
    std::string trouble() {
        auto status = status_at(home().node, alice, false);
        return status.groups.at(0)->storage->text;
    }
    std::int64_t stored_step() {
        auto status = status_at(home().node, alice, false);
        auto &storage = *status.groups.at(0)->storage;
        return storage.stored ? static_cast<std::int64_t>(storage.stored->train_step) : -1;
    }
};

/// With copies on the other node.
struct Protected : Fixture {
    std::unique_ptr<Mover> m1, m2;

    explicit Protected(std::uint64_t every)
        : Fixture(
              every, [](Fixture &) {}, "partner:1"),
          m1(std::make_unique<Mover>(n1)),
          m2(std::make_unique<Mover>(n2)) {
        await_worlds();
    }
    void pump() override {
        Fixture::pump();
        if (!m2) return;
        m1->pump(*m2);
        m2->pump(*m1);
    }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(daemon_storage)

BOOST_AUTO_TEST_CASE(every_second_complete_step_goes_to_storage) {
    Fixture t(2);
    t.await_worlds();
    BOOST_REQUIRE(t.d1->welcome.has_value());
    BOOST_TEST(t.d1->welcome->ckpt_dir == "/data/run");
    t.save_everywhere(5);
    BOOST_TEST(t.d1->stored.empty());
    t.save_everywhere(6);
    t.run(1s);
    for (Writer *d : {t.d1.get(), t.d2.get()}) {
        BOOST_TEST(d->stored.size() == 2u);
        for (auto [step, rank] : d->stored) BOOST_TEST(step == 6u);
    }
    BOOST_TEST(t.home().completed.size() == 1u);
    BOOST_TEST(t.other().completed.empty());
    BOOST_TEST(t.stored_step() == 6);
    // Nothing is kept longer than needed: all slots can be written again.
    for (std::uint64_t step : {7, 8, 9, 10}) t.save_everywhere(step);
    BOOST_TEST(t.stored_step() == 10);
}

BOOST_AUTO_TEST_CASE(what_the_writer_says_of_the_folder_is_told_once) {
    Fixture t(1);
    t.await_worlds();
    t.save_everywhere(5);
    BOOST_TEST(t.told("another run") == 0u);
    t.home().remark = "another run is there";
    for (std::uint64_t step : {6, 7, 8}) t.save_everywhere(step);
    BOOST_TEST(t.stored_step() == 8);
    BOOST_TEST(t.told("another run is there.") == 1u);
    t.home().remark = "and another run";
    t.save_everywhere(9);
    BOOST_TEST(t.told("another run") == 2u);
    BOOST_TEST(t.trouble() == "");
}

BOOST_AUTO_TEST_CASE(the_nodes_share_their_folder) {
    Fixture t(100);
    t.await_worlds();
    t.run(200s);
    BOOST_TEST((t.home().marks_made == std::vector{t.home().node.name}));
    BOOST_TEST((t.other().marks_sought == std::vector{t.home().node.name}));
    BOOST_TEST(t.told("is not the same folder") == 0u);
}

BOOST_AUTO_TEST_CASE(a_folder_that_is_not_shared_is_told_at_the_start) {
    Fixture t(100, [](Fixture &f) { f.d1->apart = f.d2->apart = true; });
    t.await_worlds();
    t.run(13s);
    BOOST_TEST(t.told("is not the same folder") == 0u);
    t.run(20s);
    std::string words = "/data/run is not the same folder on all nodes: what " + t.home().node.name +
                        " has put there is not seen on " + t.other().node.name;
    BOOST_TEST(t.told(words) == 1u);
    auto notice = t.home().node.port->take<local::NoticeT>(t.w1.first_rank == 0 ? t.a1.id : t.a2.id);
    BOOST_REQUIRE(notice.has_value());
    BOOST_TEST(notice->text.find(words) != std::string::npos, notice->text);
    t.run(200s);
    BOOST_TEST(t.told("is not the same folder") == 1u);
}

BOOST_AUTO_TEST_CASE(a_mark_that_is_seen_late_is_no_trouble) {
    Fixture t(100, [](Fixture &f) { f.d1->apart = f.d2->apart = true; });
    t.await_worlds();
    t.run(10s);
    t.d1->apart = t.d2->apart = false;
    t.run(200s);
    BOOST_TEST(t.told("is not the same folder") == 0u);
}

BOOST_AUTO_TEST_CASE(a_step_that_a_rank_asks_for_goes_to_storage_and_no_other) {
    Fixture t(0);
    t.await_worlds();
    t.save_everywhere(5);
    t.save_everywhere(6, true);
    t.run(1s);
    t.save_everywhere(7);
    t.run(1s);
    BOOST_TEST(t.home().completed.size() == 1u);
    BOOST_TEST(t.stored_step() == 6);
    // In memory first, as a program does that saves every step, and every tenth to storage.
    t.save_everywhere(8);
    t.save_everywhere(8, true);
    t.run(1s);
    BOOST_TEST(t.stored_step() == 8);
}

BOOST_AUTO_TEST_CASE(a_step_that_is_passed_while_storage_is_busy_is_told) {
    Fixture t(0);
    t.await_worlds();
    t.d2->slow = true;
    t.save_everywhere(5, true);
    t.save_everywhere(6, true);
    t.save_everywhere(7);
    BOOST_TEST(t.home().completed.empty());
    t.d2->die();
    t.d2->slow = false;
    t.d2->connect();
    t.run(3s);
    BOOST_TEST(t.stored_step() == 7);
    BOOST_TEST(t.home().completed.size() == 2u);
    BOOST_TEST(t.told("Step 6 was asked for on storage and passed") == 1u);
}

BOOST_AUTO_TEST_CASE(what_was_asked_for_outlives_the_daemons) {
    Fixture t(0);
    t.await_worlds();
    t.d1->slow = t.d2->slow = true;
    t.save_everywhere(5, true);
    BOOST_TEST(t.home().completed.empty());
    t.d1->slow = t.d2->slow = false;
    t.restart_daemons();
    BOOST_TEST(t.stored_step() == 5);
    // And what is there is not put there again.
    std::size_t completed = t.home().completed.size();
    t.restart_daemons();
    BOOST_TEST(t.home().completed.size() == completed);
    BOOST_TEST(t.stored_step() == 5);
    BOOST_TEST(t.told("passed by newer ones") == 0u);
}

BOOST_AUTO_TEST_CASE(without_a_folder_nothing_can_be_asked_for) {
    World world;
    Node n1{world, "n1"}, n2{world, "n2"};
    std::vector<Client> modules{n1.register_step(0), n2.register_step(1)};
    world.loop.advance(100ms);
    auto a1 = n1.start_agent();
    n2.start_agent();
    world.loop.advance(3s);
    auto w = n1.port->take<local::WorldPublishedT>(a1.id);
    BOOST_REQUIRE(w.has_value());
    auto worker = n1.start_worker(*w, 0);
    n1.seal(worker, 5, n1.begin_save(worker, 5), true);
    world.loop.advance();
    auto failure = n1.port->take<local::FailureT>(worker.id);
    BOOST_REQUIRE(failure.has_value());
    BOOST_TEST((failure->code == local::Refusal::Unsupported));
    BOOST_TEST(failure->text.find("--dlrover-ckpt-dir") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(objects_are_kept_while_the_writer_is_slow_and_training_goes_on) {
    Fixture t(1);
    t.await_worlds();
    t.d2->slow = true;
    t.save_everywhere(5);
    for (std::uint64_t step : {6, 7, 8, 9}) t.save_everywhere(step);  // two slots are left, and suffice
    BOOST_TEST(t.d2->stored.size() == 1u);
    BOOST_TEST(t.home().completed.empty());
    // Its successor is told again, and the newest follows.
    t.d2->die();
    t.d2->slow = false;
    t.d2->connect();
    t.run(3s);
    BOOST_TEST(t.home().completed.size() == 2u);
    BOOST_TEST(t.stored_step() == 9);
}

BOOST_AUTO_TEST_CASE(trouble_on_one_node_is_told_and_tried_again) {
    Fixture t(1);
    t.await_worlds();
    t.other().trouble = "the disk is full";
    t.save_everywhere(5);
    BOOST_TEST(t.trouble() == "the disk is full");
    BOOST_TEST(t.home().completed.empty());
    t.other().trouble.clear();
    t.save_everywhere(6);
    t.run(6s);
    BOOST_TEST(t.stored_step() == 6);
    BOOST_TEST(t.trouble() == "");
}

BOOST_AUTO_TEST_CASE(the_last_checkpoint_is_waited_for_at_the_end) {
    Fixture t(100);
    t.await_worlds();
    t.save_everywhere(5);
    t.d2->slow = true;
    t.finish_all();
    t.run(5s);
    BOOST_TEST(t.n1.port->take<local::GroupEndingT>(t.a1.id).has_value());
    BOOST_TEST(!t.ended(t.n1, t.a1));
    BOOST_TEST(!t.ended(t.n2, t.a2));
    t.d2->slow = false;
    t.d2->die();
    t.d2->connect();
    t.run(5s);
    BOOST_TEST(t.home().completed.size() == 1u);
    BOOST_TEST(t.ended(t.n1, t.a1));
    BOOST_TEST(t.ended(t.n2, t.a2));
}

BOOST_AUTO_TEST_CASE(storage_that_does_not_answer_is_named_and_training_goes_on) {
    for (bool at_home : {false, true}) {
        BOOST_TEST_CONTEXT((at_home ? "rank 0's node" : "the other node")) {
            Fixture t(1);
            t.await_worlds();
            Writer &hung = at_home ? t.home() : t.other();
            hung.slow = true;
            t.save_everywhere(5);
            t.run(15s);
            BOOST_TEST(count_events(hung.node, "Storage has been silent") == 0u);
            t.run(10s);
            for (std::uint64_t step : {6, 7, 8, 9}) t.save_everywhere(step);
            for (Node *node : {&t.n1, &t.n2}) {
                auto storage = t.storage_at(*node);
                BOOST_TEST(storage->silent_us >= 25'000'000);
                BOOST_TEST(storage->text.starts_with("storage has been silent for "), storage->text);
                BOOST_TEST(storage->text.find("/data/run does not answer dlrover-writer on " +
                                              hung.node.name) != std::string::npos,
                           storage->text);
            }
            t.run(120s);
            BOOST_TEST(count_events(hung.node, "Storage has been silent") == 1u);
            // It goes on, and so does what was complete meanwhile.
            hung.slow = false;
            hung.answer_store(hung.held.first, hung.held.second);
            t.run(5s);
            BOOST_TEST(count_events(hung.node, "Storage answers again") == 1u);
            BOOST_TEST(t.stored_step() == 9);
            auto storage = t.storage_at(t.n1);
            BOOST_TEST(storage->silent_us == 0);
            BOOST_TEST(storage->text == "");
        }
    }
}

/// The writer reads one slot, the other has the newest complete step.
BOOST_AUTO_TEST_CASE(with_two_slots_saves_are_skipped_while_storage_does_not_answer) {
    for (bool at_home : {false, true}) {
        BOOST_TEST_CONTEXT((at_home ? "rank 0's node" : "the other node")) {
            Fixture t(1);
            t.await_worlds();
            for (Node *node : {&t.n1, &t.n2})
                node->budget = MemoryBudget({.user_quota_bytes = 8u << 20}, [] { return 1u << 30; });
            Writer &hung = at_home ? t.home() : t.other();
            hung.slow = true;
            t.save_everywhere(5);
            t.save_everywhere(6);
            BOOST_TEST(status_at(hung.node, alice, false).groups.at(0)->memory_slots == 2u);
            for (std::uint64_t step = 7; step < 60; ++step) {
                auto before = t.loop.now();
                BOOST_TEST(!t.try_save_everywhere(step), "no slot is free, and nobody waits for one");
                BOOST_TEST((t.loop.now() == before));
                t.run(1s);
            }
            BOOST_TEST(count_events(hung.node, "Storage has been silent") == 1u);
            hung.slow = false;
            hung.answer_store(hung.held.first, hung.held.second);
            t.run(5s);
            BOOST_TEST(t.stored_step() == 6);
            std::string saved;
            for (std::uint64_t step = 60; step < 80; ++step) {
                saved += t.try_save_everywhere(step) ? "+" : "-";
                t.run(1s);
            }
            t.run(5s);
            BOOST_TEST(t.stored_step() >= 78, saved << " " << t.stored_step());
        }
    }
}

BOOST_AUTO_TEST_CASE(slow_storage_is_not_silent) {
    Fixture t(1);
    t.await_worlds();
    t.d1->slow = t.d2->slow = true;
    t.save_everywhere(5);
    t.run_slowly(60s);
    BOOST_TEST(t.told("silent") == 0u);
    BOOST_TEST(t.trouble() == "");
    // At the end it is waited for, longer than what hangs.
    t.finish_all();
    t.run_slowly(400s);
    BOOST_TEST(!t.ended(t.n1, t.a1));
    t.run(310s);
    BOOST_TEST(t.ended(t.n1, t.a1));
    BOOST_TEST(t.ended(t.n2, t.a2));
}

BOOST_AUTO_TEST_CASE(the_status_says_how_much_each_node_has_written) {
    Fixture t(1);
    t.await_worlds();
    t.d1->slow = t.d2->slow = true;
    t.save_everywhere(5);
    t.run(2s);
    auto written = [&](Writer &of) {
        auto storage = t.storage_at(t.other().node);  // who is asked asks the other
        BOOST_REQUIRE(storage->storing);
        BOOST_REQUIRE(storage->progress.size() == 2u);
        auto same = std::ranges::find(storage->progress, of.node.name, [](const auto &p) { return p->node; });
        BOOST_REQUIRE(same != storage->progress.end());
        const auto &part = **same;
        BOOST_TEST(part.checkpoint->train_step == 5u);
        BOOST_TEST(part.time_us >= 2000000);
        return std::pair(part.written_bytes, part.bytes);
    };
    std::uint64_t all = written(t.home()).second;
    BOOST_REQUIRE(all > 8u);
    for (auto *writer : {&t.home(), &t.other()}) {
        BOOST_TEST(written(*writer).first == 0u);
        writer->say_written(4);
        t.run(1s);
        BOOST_TEST(written(*writer).first == 4u);
        // What can not be, goes back or is of another order is not believed.
        writer->say_written(all + 1);
        writer->say_written(3);
        writer->say_written(5, 1);
        t.run(1s);
        BOOST_TEST(written(*writer).first == 4u);
    }
    t.home().slow = false;
    t.home().answer_store(t.home().held.first, t.home().held.second);
    t.run(5s);
    BOOST_TEST(written(t.home()).first == all);
    BOOST_TEST(written(t.other()).first == 4u);
    t.other().slow = false;
    t.other().answer_store(t.other().held.first, t.other().held.second);
    t.run(5s);
    BOOST_TEST(!t.storage_at(t.home().node)->storing);
}

BOOST_AUTO_TEST_CASE(a_writer_without_orders_owes_nothing) {
    Fixture t(100);
    t.await_worlds();
    t.save_everywhere(5);
    t.run(60s);
    BOOST_TEST(t.told("silent") == 0u);
    BOOST_TEST(t.trouble() == "");
}

BOOST_AUTO_TEST_CASE(the_end_does_not_wait_for_storage_that_hangs) {
    for (bool at_home : {false, true}) {
        BOOST_TEST_CONTEXT((at_home ? "rank 0's node" : "the other node")) {
            Fixture t(1);
            t.await_worlds();
            Writer &hung = at_home ? t.home() : t.other();
            hung.slow = true;
            t.save_everywhere(5);
            t.run(60s);
            t.finish_all();
            t.run(290s);  // a file server that restarts takes a minute or two
            BOOST_TEST(!t.ended(t.n1, t.a1));
            t.run(20s);
            BOOST_TEST(t.ended(t.n1, t.a1));
            BOOST_TEST(t.ended(t.n2, t.a2));
            BOOST_TEST(t.told("The last checkpoint is not on storage: /data/run has not answered") == 1u);
        }
    }
}

BOOST_AUTO_TEST_CASE(an_end_without_anything_new_does_not_wait) {
    Fixture t(1);
    t.await_worlds();
    t.save_everywhere(5);
    t.run(2s);
    BOOST_TEST(t.stored_step() == 5);
    t.finish_all();
    t.run(2s);
    BOOST_TEST(t.ended(t.n1, t.a1));
    BOOST_TEST(t.ended(t.n2, t.a2));
    BOOST_TEST(t.home().completed.size() == 1u);
}

BOOST_AUTO_TEST_CASE(a_group_that_storage_leaves_waiting_ends_all_the_same) {
    Fixture t(100);
    t.settings.storage.end_limit = 20s;
    t.await_worlds();
    t.save_everywhere(5);
    t.d1->slow = t.d2->slow = true;
    t.finish_all();
    t.run(10s);
    BOOST_TEST(!t.ended(t.n1, t.a1));
    t.run(15s);
    BOOST_TEST(t.ended(t.n1, t.a1));
    BOOST_TEST(t.ended(t.n2, t.a2));
}

/// Slurm says when it ends the job: the newest goes there before, twice.
BOOST_AUTO_TEST_CASE(the_newest_goes_to_storage_before_the_jobs_time_ends) {
    Fixture t(0);
    for (auto &[id, job] : t.slurm.jobs) job.end_time = wall_clock_us() / 1'000'000 + 100;
    t.await_worlds();
    t.slurm.away = true;  // the wall's clock stands still beside the loop's
    t.save_everywhere(5);
    t.run(20s);
    BOOST_TEST(t.home().completed.empty());
    t.run(20s);
    BOOST_TEST(t.home().completed == std::vector<std::uint64_t>{5}, boost::test_tools::per_element());
    BOOST_TEST(t.told("goes to storage now") == 1u);
    t.save_everywhere(6);
    t.run(30s);
    BOOST_TEST(t.home().completed.size() == 1u);
    t.run(25s);
    std::vector<std::uint64_t> both{5, 6};
    BOOST_TEST(t.home().completed == both, boost::test_tools::per_element());
    t.save_everywhere(7);
    t.run(60s);
    BOOST_TEST(t.home().completed == both, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(daemons_that_fall_during_the_end_come_back_to_it) {
    Fixture t(100);
    t.await_worlds();
    t.save_everywhere(5);
    t.d1->slow = t.d2->slow = true;
    t.finish_all();
    t.run(2s);
    t.d1->slow = t.d2->slow = false;
    t.restart_daemons();
    BOOST_TEST(t.home().completed.size() >= 1u);
    BOOST_TEST(t.ended(t.n1, t.a1));
    BOOST_TEST(t.ended(t.n2, t.a2));
}

BOOST_AUTO_TEST_CASE(after_a_failure_what_the_world_goes_on_from_goes_to_storage) {
    Fixture t(100);
    t.await_worlds();
    t.save_everywhere(5);
    t.n2.exited(t.a2, t.w2, 1, 3 << 8);
    t.await_worlds();
    BOOST_TEST(t.w1.restore_step == 5);
    t.run(2s);
    BOOST_TEST(t.home().completed.size() == 1u);
    BOOST_TEST(t.stored_step() == 5);
}

BOOST_AUTO_TEST_CASE(a_run_goes_on_from_storage) {
    Fixture t(1, [](Fixture &f) {
        for (Writer *d : {f.d1.get(), f.d2.get()}) {
            d->newest_step = 40;
            d->next_term = std::uint64_t{9} << 32;
        }
    });
    t.await_worlds();
    BOOST_TEST(t.w1.restore_step == 40);
    BOOST_TEST((t.w1.generation->term() > std::uint64_t{9} << 32));
    auto worker = t.n2.start_worker(t.w2, 0);
    t.n2.say(worker, local::RestoreT{});
    auto plan = t.n2.port->take<local::RestorePlanT>(worker.id);
    BOOST_REQUIRE(plan && plan->stored);
    BOOST_TEST(plan->train_step == 40);
    BOOST_TEST(plan->stored->world_size == 4u);
    BOOST_TEST(plan->folder.starts_with("/data/run/"));
    BOOST_TEST(plan->folder.find('/', 10) == std::string::npos);  // one folder, whatever the lineage
    t.save_everywhere(41);
    t.run(1s);
    BOOST_TEST(t.stored_step() == 41);
}

BOOST_AUTO_TEST_CASE(a_folder_that_can_not_be_used_ends_the_step) {
    Fixture t(1, [](Fixture &f) { f.d1->trouble = f.d2->trouble = "no permission to write in /data/run"; });
    t.run(6s);
    auto e1 = t.n1.port->take<local::GroupEndedT>(t.a1.id);
    BOOST_REQUIRE(e1.has_value());
    BOOST_TEST(e1->exit_code == 1);
    BOOST_TEST(!t.n1.port->take<local::WorldPublishedT>(t.a1.id).has_value());
}

BOOST_AUTO_TEST_CASE(without_a_writer_the_step_ends_with_a_word_about_it) {
    Fixture t(1, [](Fixture &f) {
        f.d1->die();
        f.d2->die();
    });
    t.loop.advance(45s);
    auto e1 = t.n1.port->take<local::GroupEndedT>(t.a1.id), e2 = t.n2.port->take<local::GroupEndedT>(t.a2.id);
    BOOST_REQUIRE(e1.has_value());
    BOOST_REQUIRE(e2.has_value());
    BOOST_TEST((e1->message + e2->message).find("dlrover-writer does not run") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(only_a_step_with_a_folder_has_a_writer_and_only_its_user) {
    TwoNodes plain;
    Writer refused(plain.n1);
    BOOST_TEST(!refused.welcome.has_value());
    Fixture t(1);
    auto stranger = t.n1.client(local::Role::Writer, bob);
    local::WriterHelloT hello;
    hello.job_id = 7;
    t.n1.say(stranger, std::move(hello));
    auto failure = t.n1.port->take<local::FailureT>(stranger.id);
    BOOST_REQUIRE(failure.has_value());
    BOOST_TEST((failure->code == local::Refusal::NoSuchGroup));
    t.n1.say(t.d1->client, local::RestoreT{});
    BOOST_TEST(t.n1.port->take<local::FailureT>(t.d1->client.id).has_value());
}

BOOST_AUTO_TEST_CASE(answers_that_nobody_waits_for_do_nothing) {
    Fixture t(1);
    t.await_worlds();
    t.d1->slow = t.d2->slow = true;
    t.save_everywhere(5);
    for (std::uint64_t order : {std::uint64_t{0}, std::uint64_t{1}, UINT64_MAX}) {
        local::CheckpointStoredT checkpoint;
        checkpoint.order = order;
        checkpoint.ok = true;
        local::ObjectStoredT object;
        object.order = order;
        object.ok = true;
        local::FolderFoundT found;
        found.order = order;
        for (Writer *d : {t.d1.get(), t.d2.get()}) {
            d->node.say(d->client, local::CheckpointStoredT(checkpoint), 0);
            d->node.say(d->client, local::ObjectStoredT(object), 0);
            local::FolderFoundT copy;
            copy.order = order;
            d->node.say(d->client, std::move(copy), 0);
        }
    }
    t.run(1s);
    BOOST_TEST(t.stored_step() == -1);
}

BOOST_AUTO_TEST_CASE(what_can_not_be_is_not_believed_of_a_writer) {
    for (auto [step, term] :
         {std::pair(std::uint64_t{1} << 63, std::uint64_t{0}), std::pair(std::uint64_t{5}, UINT64_MAX),
          std::pair(std::uint64_t{5}, std::uint64_t{3})}) {
        Fixture t(1, [step = step, term = term](Fixture &f) {
            for (Writer *d : {f.d1.get(), f.d2.get()}) {
                d->newest_step = step;
                d->next_term = term;
            }
        });
        t.run(6s);
        auto e1 = t.n1.port->take<local::GroupEndedT>(t.a1.id);
        BOOST_REQUIRE(e1.has_value());
        BOOST_TEST(e1->exit_code == 1);
    }
}

BOOST_AUTO_TEST_CASE(a_node_that_has_ended_is_not_waited_for) {
    Fixture t(100);
    t.await_worlds();
    t.save_everywhere(5);
    t.d1->slow = t.d2->slow = true;
    t.finish_all();
    t.run(2s);
    // The step's last task on the other node is gone: nothing is kept there any more.
    Node &gone = t.other().node;
    auto module = gone.client(local::Role::Spank, 0);
    local::EndStepT end;
    end.job_id = 7;
    gone.say(module, std::move(end));
    t.run(5s);
    BOOST_TEST(t.home().completed.empty());
    Client &agent = t.w1.first_rank == 0 ? t.a1 : t.a2;
    BOOST_TEST(t.ended(t.home().node, agent));
}

BOOST_AUTO_TEST_CASE(a_node_whose_writer_does_not_come_back_is_not_waited_for) {
    for (bool at_home : {false, true}) {
        BOOST_TEST_CONTEXT((at_home ? "of rank 0's node" : "of the other node")) {
            Fixture t(100);
            t.await_worlds();
            t.save_everywhere(5);
            (at_home ? t.home() : t.other()).die();  // with the agent that had started it
            t.finish_all();
            t.run(25s);
            BOOST_TEST(!t.ended(t.n1, t.a1));
            t.run(10s);
            BOOST_TEST(t.ended(t.n1, t.a1));
            BOOST_TEST(t.ended(t.n2, t.a2));
            BOOST_TEST(t.home().completed.empty());
        }
    }
}

/// The leader, lost at the moment when all ranks have finished: no world comes after it.
BOOST_AUTO_TEST_CASE(a_node_that_is_lost_during_the_end_is_not_waited_for) {
    Fixture t(100);
    t.await_worlds();
    t.save_everywhere(5);
    t.other().slow = true;
    t.finish_all();
    t.run(2s);
    t.hub.cut("n1", "n2");
    t.run(25s);
    Client &agent = t.w1.first_rank == 0 ? t.a1 : t.a2;
    BOOST_TEST(!t.ended(t.home().node, agent));
    t.run(10s);
    BOOST_TEST(t.ended(t.home().node, agent));
    BOOST_TEST(t.home().completed.empty());
    BOOST_TEST(t.told("is silent, and no other node has a whole copy") == 1u);
}

BOOST_AUTO_TEST_CASE(the_copies_of_a_node_that_is_lost_during_the_end_go_to_storage) {
    Protected t(100);
    t.save_everywhere(5);
    t.run(3s);
    t.other().slow = true;
    t.finish_all();
    t.run(2s);
    t.hub.cut("n1", "n2");
    t.run(40s);
    BOOST_TEST(t.home().completed.size() == 1u);
    BOOST_TEST(t.told("is not on storage") == 0u);
    Client &agent = t.w1.first_rank == 0 ? t.a1 : t.a2;
    BOOST_TEST(t.ended(t.home().node, agent));
}

BOOST_AUTO_TEST_CASE(what_is_damaged_in_memory_is_no_trouble_of_storage) {
    Fixture t(1);
    t.await_worlds();
    t.d1->damaged = {t.w1.first_rank};
    t.save_everywhere(5);
    t.run(60s);
    std::string what =
        "hat rank " + std::to_string(t.w1.first_rank) + " has saved of step 5 is damaged in the memory of n1";
    BOOST_TEST(count_events(t.n1, "W" + what) == 1u);
    BOOST_TEST(t.told("The checkpoint of step 5 is not on storage: w" + what) == 1u);
    BOOST_TEST(t.told("and no other node has a whole copy. A later one goes there instead.") == 1u);
    BOOST_TEST(t.trouble() == "");
    BOOST_TEST(t.d1->stored.size() == 2u, "the other rank's goes there, and nothing is tried again");
    BOOST_TEST(t.home().completed.empty());
    t.d1->damaged.clear();
    t.save_everywhere(6);
    BOOST_TEST(t.stored_step() == 6);
}

BOOST_AUTO_TEST_CASE(the_end_does_not_wait_for_what_is_damaged) {
    Fixture t(100);
    t.await_worlds();
    t.save_everywhere(5);
    t.d2->damaged = {t.w2.first_rank, t.w2.first_rank + 1};
    t.finish_all();
    t.run(3s);
    BOOST_TEST(t.ended(t.n1, t.a1));
    BOOST_TEST(t.ended(t.n2, t.a2));
    BOOST_TEST(count_events(t.n2, "damaged in the memory of n2") == 2u + (&t.home() == t.d2.get()));
    BOOST_TEST(t.told("The checkpoint of step 5 is not on storage: what rank") == 1u);
    BOOST_TEST(t.home().completed.empty());
}

BOOST_AUTO_TEST_CASE(the_copy_of_what_is_damaged_goes_to_storage) {
    Protected t(100);
    t.save_everywhere(5);
    t.run(3s);
    std::uint32_t rank = t.w1.first_rank;
    t.d1->damaged = {rank};
    t.finish_all();
    t.run(5s);
    std::vector<std::pair<std::uint64_t, std::uint32_t>> put = t.d2->stored;
    BOOST_TEST(put.size() == 3u);
    BOOST_TEST((std::ranges::find(put, std::pair(std::uint64_t{5}, rank)) != put.end()));
    BOOST_TEST(t.home().completed.size() == 1u);
    BOOST_TEST(count_events(t.n1, "damaged in the memory of n1") == 1u);
    BOOST_TEST(t.told("is not on storage") == 0u);
    BOOST_TEST(t.ended(t.n1, t.a1));
    BOOST_TEST(t.ended(t.n2, t.a2));
}

BOOST_AUTO_TEST_CASE(where_the_copy_is_damaged_too_a_later_step_goes_to_storage) {
    Protected t(1);
    t.d1->damaged = t.d2->damaged = {t.w1.first_rank};
    t.save_everywhere(5);
    t.run(60s);
    BOOST_TEST(t.home().completed.empty());
    BOOST_TEST(count_events(t.n1, "damaged in the memory of n1") >= 1u);
    BOOST_TEST(count_events(t.n2, "damaged in the memory of n2") >= 1u);
    BOOST_TEST(t.told("and no other node has a whole copy. A later one goes there instead.") == 1u);
    t.d1->damaged.clear();
    t.save_everywhere(6);
    t.run(3s);
    BOOST_TEST(t.stored_step() == 6);
}

BOOST_AUTO_TEST_CASE(words_of_peers_are_checked) {
    FlushWord word;
    word.kind = FlushWord::Kind::Begin;
    word.order = 7;
    word.id = {{Term(3), 4}, TrainStep(5)};
    word.world_size = 6;
    word.text = "why";
    word.ranks = {Rank(0), Rank(5)};
    word.lacks = {Rank(5)};
    auto bytes = encode_flush_word(word);
    auto back = decode_flush_word(bytes);
    BOOST_REQUIRE(back.ok());
    BOOST_TEST((*back == word));
    BOOST_TEST(!decode_flush_word({}).ok());
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        auto cut = std::span(bytes).first(i);
        BOOST_TEST(!decode_flush_word(cut).ok());
    }
    for (auto *ranks : {&word.ranks, &word.lacks}) {
        std::vector<Rank> good = std::exchange(*ranks, {Rank(6)});
        BOOST_TEST(!decode_flush_word(encode_flush_word(word)).ok());
        *ranks = std::move(good);
    }
    word.ranks.clear();
    word.lacks.clear();
    word.world_size = 0;
    BOOST_TEST(!decode_flush_word(encode_flush_word(word)).ok());
    word.kind = FlushWord::Kind::None;
    BOOST_TEST(!decode_flush_word(encode_flush_word(word)).ok());
}

BOOST_AUTO_TEST_SUITE_END()
