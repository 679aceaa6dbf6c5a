// SPDX-License-Identifier: Apache-2.0
// Steps that failures come back from: after two with the same signature an older step.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <csignal>

#include "tests/unit/elastic_group.h"

using namespace dlrover;
using namespace dlrover::elastic;
using namespace std::chrono_literals;

namespace {

constexpr std::uint64_t nan_loss = 77, other = 78;

/// Three nodes of one rank; node 1 leads.
struct Fixture {
    static GroupConfig config(bool storage, std::uint32_t copies, std::uint32_t restarts) {
        GroupConfig c = TestGroup::config(3, 3, 3);
        c.storage = storage;
        c.copies = copies;
        c.max_restarts = restarts;
        return c;
    }
    explicit Fixture(bool storage = true, std::uint32_t copies = 0, std::uint32_t restarts = 6)
        : g(config(storage, copies, restarts)) {
        if (storage) {
            g.storage.emplace();
            g.storage->ok = true;
            g.storage->world_size = 3;
        }
        g.job_nodes = nodes({0, 1, 2});
        g.start();
        BOOST_REQUIRE(g.leader() == 1u);
    }
    World world() const { return g.world(1); }
    /// Every rank seals it; it goes to storage too.
    void save(std::uint64_t step, bool to_storage = true) {
        World w = world();
        CheckpointId id{w.id, TrainStep(step)};
        for (std::uint32_t r = 0; r < 3; ++r)
            g.feed(w.nodes[r].value(), LocalSealed{Seal{id.step, Rank(r), 3, id.generation}});
        g.run(500ms);
        if (to_storage) g.folder.push_back(id);
    }
    void fail(std::uint64_t signature, int status = 256) {
        GenerationId before = world().id;
        g.fail(world().nodes[2].value(), 2, status, signature);
        g.run(3s);
        BOOST_REQUIRE((world().id > before || over()));
    }
    void change_leader() {
        std::uint32_t of = g.leader();
        g.crash(of);
        for (std::uint32_t node : {0u, 1u, 2u})
            if (node != of) g.feed(node, PeerLink{NodeIndex(of), true});
        g.run(3s);
        g.boot(of);
        g.feed(of, LocalReady{true, world().id});
        g.run(1s);
        BOOST_REQUIRE(g.leader() != of);
    }
    /// Some steps without a checkpoint.
    void train(std::uint64_t steps) {
        RankProgress p;
        p.steps_done = steps;
        g.feed(world().nodes[0].value(), LocalProgress{{p}});
        g.run(500ms);
    }
    /// A person says it at that node.
    void roll_back(std::uint64_t step, std::uint32_t node = 0) {
        g.feed(node, LocalRollback{{world().id, TrainStep(step)}});
        g.run(3s);
    }
    bool over() const { return g.count<End>(1) > 0; }
    std::uint64_t from() const { return world().restore_step.value_or(TrainStep(0)).value(); }
    std::vector<std::string> warnings(std::uint32_t node = 1) const {
        std::vector<std::string> texts;
        for (const Note &n : g.actions<Note>(node))
            if (n.kind == Note::Kind::warning) texts.push_back(n.text);
        return texts;
    }
    TestGroup g;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(suspect_steps)

BOOST_AUTO_TEST_CASE(two_failures_from_one_step_lead_to_the_one_before_it) {
    Fixture f;
    f.save(100);
    f.save(200);
    f.fail(nan_loss);  // of the world that has saved it: not from it
    f.fail(nan_loss);
    BOOST_TEST(f.from() == 200u);
    BOOST_TEST(f.world().strikes.count == 1u);
    f.fail(nan_loss);
    BOOST_TEST(f.from() == 100u);
    BOOST_TEST(f.world().stored_world_size == 3u);
    BOOST_REQUIRE(f.world().suspects.size() == 1u);
    BOOST_TEST((f.world().suspects.front().id == f.g.folder[1]));
    BOOST_TEST((f.world().suspects.front().since == f.world().id));
    BOOST_REQUIRE(f.warnings().size() == 1u);
    BOOST_TEST(
        f.warnings().front() ==
        "Step 200: two failures came back from it (rank 2 on node 2 exited with code 1); going on from "
        "step 100 on storage.");
}

BOOST_AUTO_TEST_CASE(a_suspect_step_is_not_called_durable) {
    Fixture f;
    for (std::uint64_t step : {100u, 200u}) {
        f.save(step);
        f.g.feed(f.world().nodes[0].value(), LocalDurable{f.g.folder.back()});
    }
    for (std::uint32_t node : {0u, 1u, 2u}) BOOST_TEST((f.g.view(node).durable == f.g.folder[1]));
    for (int i = 0; i < 3; ++i) f.fail(nan_loss);
    BOOST_REQUIRE(f.from() == 100u);
    f.g.feed(f.world().nodes[0].value(), LocalDurable{f.g.folder[1]});  // a late word
    f.g.run(1s);
    for (std::uint32_t node : {0u, 1u, 2u}) BOOST_TEST((f.g.view(node).durable == f.g.folder[0]));
}

BOOST_AUTO_TEST_CASE(it_counts_although_the_program_takes_steps) {
    Fixture f;
    f.save(100);
    f.save(200);
    f.fail(other);
    for (int i = 0; i < 2; ++i) {
        BOOST_TEST(f.from() == 200u);
        f.train(5);
        f.fail(nan_loss);
    }
    BOOST_TEST(f.from() == 100u);
}

BOOST_AUTO_TEST_CASE(another_failure_begins_a_new_row) {
    Fixture f;
    f.save(100);
    f.save(200);
    f.fail(other);
    for (std::uint64_t signature : {nan_loss, other, nan_loss, other}) f.fail(signature);
    BOOST_TEST(f.from() == 200u);
    BOOST_TEST(f.world().suspects.empty());
}

BOOST_AUTO_TEST_CASE(a_newer_checkpoint_begins_a_new_row) {
    Fixture f;
    f.save(100);
    f.save(200);
    f.fail(nan_loss);
    f.fail(nan_loss);
    f.save(300);
    f.fail(nan_loss);
    BOOST_TEST(f.from() == 300u);
    f.fail(nan_loss);
    BOOST_TEST(f.from() == 300u);
    f.fail(nan_loss);
    BOOST_TEST(f.from() == 200u);
}

BOOST_AUTO_TEST_CASE(the_same_step_saved_again_is_the_same_state) {
    Fixture f;
    f.save(100);
    f.save(200);
    f.fail(nan_loss);
    f.save(200);
    f.fail(nan_loss);
    f.save(200);
    f.fail(nan_loss);
    BOOST_TEST(f.from() == 100u);
}

BOOST_AUTO_TEST_CASE(an_end_from_outside_blames_no_state) {
    Fixture f;
    f.save(100);
    f.save(200);
    for (int i = 0; i < 4; ++i) {
        f.fail(nan_loss, SIGKILL);
        BOOST_TEST(f.from() == 200u);
    }
    BOOST_TEST(f.world().strikes.count == 0u);
}

/// What worlds before have saved after the step gone back to is not chosen any more; what is saved since is.
BOOST_AUTO_TEST_CASE(the_suspects_line_stays_passed_over) {
    Fixture f;
    f.save(100);
    f.save(150);
    f.save(200);
    f.g.folder.erase(f.g.folder.begin() + 1);  // its manifest comes late
    f.fail(other);
    f.fail(nan_loss);
    f.fail(nan_loss);
    BOOST_REQUIRE(f.from() == 100u);
    f.g.folder.push_back({f.g.folder[1].generation, TrainStep(150)});
    f.fail(other);
    BOOST_TEST(f.from() == 100u);
    f.save(110);
    f.fail(other);
    BOOST_TEST(f.from() == 110u);
    BOOST_TEST(f.world().stored_world_size == 0u);
    BOOST_REQUIRE(f.world().suspects.size() == 1u);
    BOOST_TEST((f.world().suspects.front().id.step == TrainStep(200)));
    f.save(200);
    f.fail(other);
    BOOST_TEST(f.from() == 200u);
}

BOOST_AUTO_TEST_CASE(back_and_back_again) {
    Fixture f(true, 0, 12);
    for (std::uint64_t step : {10, 20, 30}) f.save(step);
    f.fail(other);
    for (std::uint64_t step : {30, 20}) {
        BOOST_TEST(f.from() == step);
        f.fail(nan_loss);
        BOOST_TEST(f.from() == step);
        f.fail(nan_loss);
    }
    BOOST_TEST(f.from() == 10u);
    BOOST_REQUIRE(f.world().suspects.size() == 1u);  // the later one covers the earlier one
    BOOST_TEST((f.world().suspects.front().back_to == TrainStep(10)));
}

/// Bad since before the step gone back to: what is saved on the way from there is no progress.
BOOST_AUTO_TEST_CASE(the_same_way_to_the_same_failure_leads_further_back) {
    Fixture f(true, 0, 12);
    for (std::uint64_t step : {10, 20}) f.save(step);
    f.save(25, false);
    f.fail(nan_loss);
    f.fail(nan_loss);
    f.fail(nan_loss);
    BOOST_REQUIRE(f.from() == 20u);
    f.save(24, false);
    f.fail(nan_loss);
    BOOST_TEST(f.from() == 24u);
    f.save(25, false);
    f.fail(nan_loss);
    BOOST_TEST(f.from() == 10u);
    BOOST_TEST(
        f.warnings().back() ==
        "Step 24: two failures came back although the group had gone back to step 20 (rank 2 on node 2 "
        "exited with code 1); going on from step 10 on storage.");
    BOOST_REQUIRE(f.world().suspects.size() == 1u);
    BOOST_TEST((f.world().suspects.front().id.step == TrainStep(25)));
    BOOST_TEST((f.world().suspects.front().back_to == TrainStep(10)));
    // Beyond it all begins anew.
    f.save(30);
    f.fail(nan_loss);
    f.fail(nan_loss);
    BOOST_TEST(f.from() == 30u);
    f.save(40);
    f.fail(nan_loss);
    f.fail(nan_loss);
    f.fail(nan_loss);
    BOOST_TEST(f.from() == 30u);
    BOOST_TEST(f.world().suspects.size() == 2u);
}

BOOST_AUTO_TEST_CASE(another_failure_on_the_same_way_does_not) {
    Fixture f(true, 0, 12);
    for (std::uint64_t step : {10, 20, 30}) f.save(step);
    for (int i = 0; i < 3; ++i) f.fail(nan_loss);
    BOOST_REQUIRE(f.from() == 20u);
    for (std::uint64_t step : {24, 26, 28}) {
        f.save(step, false);
        f.fail(other);
        BOOST_TEST(f.from() == step);
    }
    BOOST_TEST(f.world().strikes.count == 0u);
}

/// Nothing is older than where it has gone back to: it goes on as if it had not.
BOOST_AUTO_TEST_CASE(the_same_way_again_with_nothing_older) {
    Fixture f(true, 0, 12);
    f.save(20);
    f.save(25, false);
    for (int i = 0; i < 3; ++i) f.fail(nan_loss);
    BOOST_REQUIRE(f.from() == 20u);
    f.save(24, false);
    for (int i = 0; i < 2; ++i) {
        f.fail(nan_loss);
        BOOST_TEST(f.from() == 24u);
    }
    BOOST_TEST(!f.over());
    f.fail(nan_loss);
    BOOST_TEST(f.over());
}

/// What the group saves again has no new restarts, whoever leads.
BOOST_AUTO_TEST_CASE(restarts_are_renewed_beyond_the_suspect_only) {
    Fixture f(true, 0, 6);
    f.save(20);
    f.save(25);
    for (int i = 0; i < 3; ++i) f.fail(nan_loss);
    BOOST_REQUIRE(f.from() == 20u);
    BOOST_REQUIRE(f.world().budget_used == 3u);
    f.change_leader();
    f.save(24, false);
    f.fail(other);
    BOOST_TEST(f.world().budget_used == 4u);
    f.save(26, false);
    f.fail(other);
    BOOST_TEST(f.world().budget_used == 1u);
}

/// Never from the beginning: the step is kept, and a program that does nothing more is given up as ever.
BOOST_AUTO_TEST_CASE(without_an_older_step_it_is_kept) {
    for (bool storage : {true, false}) {
        Fixture f(storage);
        f.save(200, storage);
        f.fail(other);
        f.fail(nan_loss);
        BOOST_TEST(f.from() == 200u);
        f.fail(nan_loss);
        BOOST_TEST(f.from() == 200u);
        BOOST_TEST(f.world().suspects.empty());
        BOOST_TEST(!f.over());
        f.fail(nan_loss);
        BOOST_TEST(f.over());
        BOOST_TEST(f.g.actions<End>(1).back().message.find("at the same place 3 times") != std::string::npos);
    }
}

BOOST_AUTO_TEST_CASE(all_restarts_are_counted_on_the_way_back) {
    Fixture f(true, 0, 3);
    f.save(100);
    f.save(200);
    for (int i = 0; i < 3; ++i) f.fail(nan_loss);
    BOOST_TEST(f.from() == 100u);
    BOOST_TEST(!f.over());
    f.fail(nan_loss);
    BOOST_TEST(f.over());
}

/// Better a suspect step than none.
BOOST_AUTO_TEST_CASE(where_all_is_suspect_the_newest_is_taken) {
    Fixture f;
    f.save(100);
    f.save(200);
    f.fail(other);
    f.fail(nan_loss);
    f.fail(nan_loss);
    BOOST_REQUIRE(f.from() == 100u);
    f.g.folder.erase(f.g.folder.begin());
    f.fail(other);
    BOOST_TEST(f.from() == 200u);
    BOOST_TEST(!f.over());
}

BOOST_AUTO_TEST_CASE(what_another_job_has_put_there_is_no_step_back) {
    for (std::uint64_t step : {200, 300}) {
        Fixture f;
        f.save(200);
        f.fail(other);
        f.g.folder = {{{Term(9ull << 32), 1}, TrainStep(step)}};
        f.fail(nan_loss);
        f.fail(nan_loss);
        BOOST_TEST(f.from() == 200u);
        BOOST_TEST(f.world().suspects.empty());
    }
}

BOOST_AUTO_TEST_CASE(storage_that_does_not_answer_is_not_waited_for_long) {
    Fixture f;
    f.save(100);
    f.save(200);
    f.fail(other);
    f.fail(nan_loss);
    f.g.storage.reset();
    GenerationId before = f.world().id;
    f.g.fail(f.world().nodes[2].value(), 2, 256, nan_loss);
    f.g.run(4s);
    BOOST_TEST((f.world().id == before));
    f.g.run(2s);
    BOOST_TEST((f.world().id > before));
    BOOST_TEST(f.from() == 200u);
    BOOST_TEST(f.world().strikes.count == 2u);
    // It is back, and so is the failure.
    f.g.storage.emplace();
    f.g.storage->ok = true;
    f.g.storage->world_size = 3;
    f.fail(nan_loss);
    BOOST_TEST(f.from() == 100u);
}

/// The count and what is suspect are on record.
BOOST_AUTO_TEST_CASE(a_new_leader_goes_on_counting) {
    Fixture f;
    f.save(100);
    f.save(200);
    f.fail(other);
    f.fail(nan_loss);
    BOOST_REQUIRE(f.from() == 200u);
    f.change_leader();
    f.fail(nan_loss);
    BOOST_TEST(f.from() == 100u);
    f.change_leader();
    f.fail(other);
    BOOST_TEST(f.from() == 100u);
    BOOST_TEST(f.world().suspects.size() == 1u);
}

/// The safe step is older than one that has no copies yet.
BOOST_AUTO_TEST_CASE(back_to_what_is_in_memory) {
    Fixture f(false, 1);
    auto copy = [&](std::uint64_t step) {
        World w = f.world();
        for (std::uint32_t r = 0; r < 3; ++r)
            f.g.feed(w.partners[r].value(), LocalSealed{Seal{TrainStep(step), Rank(r), 3, w.id}});
        f.g.run(500ms);
    };
    f.save(100, false);
    copy(100);
    f.save(200, false);
    f.fail(other);
    BOOST_TEST(f.from() == 200u);
    f.fail(nan_loss);
    f.fail(nan_loss);
    BOOST_TEST(f.from() == 100u);
    BOOST_TEST(f.world().stored_world_size == 0u);
    BOOST_TEST(f.warnings().back().find("going on from step 100.") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_person_goes_back) {
    Fixture f;
    for (std::uint64_t step : {100, 200, 300}) f.save(step);
    f.save(350, false);
    GenerationId before = f.world().id;
    f.roll_back(100);
    BOOST_TEST((f.world().id > before));
    BOOST_TEST(f.from() == 100u);
    BOOST_TEST(f.world().stored_world_size == 3u);
    BOOST_TEST(f.world().reason == "rolled back to step 100");
    BOOST_TEST(f.world().restart_count == 1u);
    BOOST_TEST(f.world().budget_used == 0u);
    BOOST_REQUIRE(f.world().suspects.size() == 1u);
    const Suspect s = f.world().suspects.front();
    BOOST_TEST(s.by_person);
    BOOST_TEST((s.id == CheckpointId{before, TrainStep(350)}));
    BOOST_TEST((s.back_to == TrainStep(100)));
    BOOST_TEST((s.since == f.world().id));
    BOOST_REQUIRE(f.warnings().size() == 1u);
    BOOST_TEST(f.warnings().front() == "Rolled back by hand to step 100: going on from step 100 on storage.");
    // Once; and what was left stays left.
    GenerationId after = f.world().id;
    f.g.run(5s);
    BOOST_TEST((f.world().id == after));
    f.fail(other);
    BOOST_TEST(f.from() == 100u);
    f.save(110);
    BOOST_TEST(f.world().budget_used == 1u);
    f.fail(other);
    BOOST_TEST(f.from() == 110u);
    BOOST_TEST(f.world().budget_used == 1u, "what is saved since is progress");
}

/// What fails from where a person went back to is blamed on that state, not on the one that was left.
BOOST_AUTO_TEST_CASE(failures_after_a_persons_word_begin_a_new_row) {
    Fixture f(true, 0, 12);
    for (std::uint64_t step : {100, 200, 300}) f.save(step);
    f.fail(nan_loss);
    f.fail(nan_loss);
    f.roll_back(200);
    BOOST_TEST(f.from() == 200u);
    BOOST_TEST(f.world().strikes.count == 0u);
    f.fail(nan_loss);
    BOOST_TEST(f.from() == 200u);
    f.fail(nan_loss);
    BOOST_TEST(f.from() == 100u);
    BOOST_REQUIRE(f.world().suspects.size() == 1u);
    BOOST_TEST(!f.world().suspects.front().by_person);
}

/// Then it is as if nobody had said it.
BOOST_AUTO_TEST_CASE(where_a_persons_step_is_gone_failures_have_the_word) {
    Fixture f;
    f.save(100);
    f.save(200);
    f.fail(nan_loss);
    f.fail(nan_loss);
    BOOST_TEST(f.from() == 200u);
    std::uint32_t node = f.world().nodes[2].value();
    f.g.cut(node);
    f.g.feed(node, LocalRollback{{f.world().id, TrainStep(50)}});
    f.g.fail(node, 2, 256, nan_loss);
    f.g.heal();
    f.g.run(3s);
    BOOST_TEST(f.from() == 100u);
    BOOST_REQUIRE(f.world().suspects.size() == 1u);
    BOOST_TEST(!f.world().suspects.front().by_person);
    BOOST_TEST((f.world().suspects.front().id.step == TrainStep(200)));
    BOOST_REQUIRE(f.warnings().size() == 2u);
    BOOST_TEST(f.warnings().front() ==
               "Rolled back by hand to step 50: it was not found any more, nor an older one.");
    BOOST_TEST(f.warnings().back().starts_with("Step 200: two failures came back from it"));
}

BOOST_AUTO_TEST_CASE(a_persons_word_about_another_world_is_not_heeded) {
    Fixture f;
    f.save(100);
    f.save(200);
    World before = f.world();
    for (GenerationId from : {GenerationId{}, GenerationId{before.id.term, before.id.number + 1}})
        for (std::uint32_t node : {0u, 1u, 2u}) f.g.feed(node, LocalRollback{{from, TrainStep(100)}});
    f.g.run(3s);
    BOOST_TEST((f.world() == before));
    f.roll_back(100);
    BOOST_REQUIRE(f.from() == 100u);
    // The same word again, of the world that has given way.
    f.g.feed(2, LocalRollback{{before.id, TrainStep(100)}});
    World after = f.world();
    f.g.run(3s);
    BOOST_TEST((f.world() == after));
}

BOOST_AUTO_TEST_CASE(a_persons_word_outlives_the_leader) {
    Fixture f;
    f.save(100);
    f.save(200);
    GenerationId before = f.world().id;
    f.g.crash(1);
    f.g.feed(2, LocalRollback{{before, TrainStep(100)}});
    f.g.feed(0, PeerLink{NodeIndex(1), true});
    f.g.feed(2, PeerLink{NodeIndex(1), true});
    f.g.run(1s);
    f.g.boot(1);
    f.g.feed(1, LocalReady{true, before});
    f.g.run(5s);
    BOOST_REQUIRE(f.g.leader() != 1u);
    BOOST_TEST((f.g.world(2).restore_step == TrainStep(100)));
    BOOST_TEST(f.g.world(2).suspects.front().by_person);
}

/// The leader was cut off as it put the rollback into force: nobody else knows whether it is.
BOOST_AUTO_TEST_CASE(a_rollback_that_only_a_leader_cut_off_knows_of_is_not_forgotten) {
    Fixture f;
    f.save(100);
    f.save(200);
    f.g.cut(1);
    f.g.feed(1, LocalRollback{{f.world().id, TrainStep(100)}});
    auto asked = f.g.actions<SendMessage>(1);
    std::ranges::reverse(asked);
    for (std::uint32_t node : {0u, 2u}) {
        auto prepare = std::ranges::find_if(asked, [&](const SendMessage &m) {
            return m.to == NodeIndex(node) && std::holds_alternative<Prepare>(m.message);
        });
        BOOST_REQUIRE((prepare != asked.end()));
        f.g.feed(node, PeerMessage{NodeIndex(1), prepare->message});
        auto answered = f.g.actions<SendMessage>(node);
        BOOST_REQUIRE(std::holds_alternative<PrepareReply>(answered.back().message));
        f.g.feed(1, PeerMessage{NodeIndex(node), answered.back().message});
    }
    World rolled_back = f.g.world(1);
    BOOST_REQUIRE((rolled_back.restore_step == TrainStep(100)));
    BOOST_REQUIRE((f.g.view(0).leader != NodeIndex(2)));
    for (int i = 0; i < 200 && f.g.view(2).leader != NodeIndex(2); ++i) f.g.run(20ms);
    BOOST_REQUIRE((f.g.view(2).leader == NodeIndex(2)));
    f.g.heal();
    f.g.run(3s);
    World w = f.g.world(2);
    BOOST_TEST((w.id > rolled_back.id));
    BOOST_TEST((w.restore_step == TrainStep(100)));
    BOOST_TEST((w.suspects == rolled_back.suspects));
    BOOST_TEST(w.restart_count == rolled_back.restart_count + 1);
}

/// Without copies older slots are free: from memory it is the newest alone.
BOOST_AUTO_TEST_CASE(a_person_goes_back_to_what_is_in_memory) {
    Fixture f(false);
    f.save(100, false);
    f.save(200, false);
    f.roll_back(200);
    BOOST_TEST(f.from() == 200u);
    BOOST_TEST(f.world().stored_world_size == 0u);
    BOOST_TEST((f.world().suspects.front().back_to == TrainStep(200)));
    BOOST_TEST(f.warnings().back() == "Rolled back by hand to step 200: going on from step 200.");
    GenerationId before = f.world().id;
    f.roll_back(100);
    BOOST_TEST((f.world().id > before));
    BOOST_TEST(f.from() == 200u);
    BOOST_TEST(f.warnings().back() ==
               "Rolled back by hand to step 100: it was not found any more, nor an older one; going on from "
               "step 200.");
}

/// What is between the safe step and the newest one is not kept.
BOOST_AUTO_TEST_CASE(a_step_on_storage_is_not_passed_over_for_an_older_one_in_memory) {
    Fixture f(true, 1);
    f.save(100, false);
    f.save(200);
    f.save(300, false);
    World w = f.world();
    for (std::uint32_t r = 0; r < 3; ++r)
        f.g.feed(w.nodes[r].value(), LocalObjects{{Seal{TrainStep(100), Rank(r), 3, w.id},
                                                   Seal{TrainStep(300), Rank(r), 3, w.id}}});
    f.roll_back(200);
    BOOST_TEST(f.from() == 200u);
    BOOST_TEST(f.world().stored_world_size == 3u);
}

BOOST_AUTO_TEST_CASE(a_step_that_is_gone_meanwhile_gives_way_to_one_before) {
    Fixture f;
    for (std::uint64_t step : {100, 200, 300}) f.save(step);
    f.g.folder.erase(f.g.folder.begin() + 1);
    f.roll_back(200);
    BOOST_TEST(f.from() == 100u);
    BOOST_TEST(
        f.warnings().back() ==
        "Rolled back by hand to step 200: it was not found any more; going on from step 100 on storage.");
    BOOST_TEST((f.world().suspects.front().back_to == TrainStep(100)));
}

BOOST_AUTO_TEST_SUITE_END()
