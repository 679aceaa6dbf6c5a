// SPDX-License-Identifier: Apache-2.0
// Checks of nodes in pairs: who meets whom, and what follows from it.
#include "elastic/node_check.h"

#include <boost/test/data/test_case.hpp>
#include <boost/test/unit_test.hpp>
#include <functional>
#include <map>
#include <set>

#include "elastic_group.h"

using namespace dlrover;
using namespace dlrover::elastic;
using namespace std::chrono_literals;

namespace {

std::vector<NodeIndex> range(std::uint32_t count) {
    std::vector<NodeIndex> all;
    for (std::uint32_t i = 0; i < count; ++i) all.emplace_back(i);
    return all;
}

/// A cluster in which some nodes fail with everybody, and some take long.
struct Cluster {
    std::uint32_t size = 0;
    std::set<std::uint32_t> bad = {};
    std::set<std::uint32_t> slow = {};
    CheckBook book = {};

    std::optional<Duration> meet(const CheckPair &pair) const {
        auto is = [&](const std::set<std::uint32_t> &those) {
            return those.contains(pair.first.value()) || those.contains(pair.second.value());
        };
        if (is(bad)) return std::nullopt;
        return is(slow) ? Duration(3s) : Duration(400ms);
    }
    void check() {
        for (const auto &pair : all_pairs(range(size))) book.add(pair, meet(pair));
    }
    CheckVerdict verdict(std::uint32_t node) const { return book.verdict(NodeIndex(node)); }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(elastic_check)

BOOST_AUTO_TEST_CASE(each_meets_each) {
    BOOST_TEST(all_pairs(range(1)).empty());
    BOOST_TEST((all_pairs(nodes({4, 2})) == std::vector<CheckPair>{{NodeIndex(4), NodeIndex(2)}}));
    auto three = all_pairs(nodes({5, 1, 2}));
    BOOST_REQUIRE(three.size() == 3u);
    BOOST_TEST((three[0] == CheckPair{NodeIndex(5), NodeIndex(1)}));
    BOOST_TEST((three[1] == CheckPair{NodeIndex(5), NodeIndex(2)}));
    BOOST_TEST((three[2] == CheckPair{NodeIndex(1), NodeIndex(2)}));
}

/// Each of its partners fails with it, and does better with another.
BOOST_AUTO_TEST_CASE(one_bad_node_among_many_is_found) {
    for (std::uint32_t size = 3; size < 8; ++size)
        for (std::uint32_t bad = 0; bad < size; ++bad) {
            Cluster c{size, {bad}};
            c.check();
            for (std::uint32_t i = 0; i < size; ++i)
                BOOST_TEST((c.verdict(i) == (i == bad ? CheckVerdict::failed : CheckVerdict::sound)),
                           "node " << i << " of " << size << ", bad is " << bad);
        }
}

BOOST_AUTO_TEST_CASE(one_slow_node_among_many_is_found) {
    for (std::uint32_t size = 3; size < 8; ++size)
        for (std::uint32_t slow = 0; slow < size; ++slow) {
            Cluster c{size, {}, {slow}};
            c.check();
            for (std::uint32_t i = 0; i < size; ++i)
                BOOST_TEST((c.verdict(i) == (i == slow ? CheckVerdict::slow : CheckVerdict::sound)),
                           "node " << i << " of " << size << ", slow is " << slow);
        }
}

BOOST_AUTO_TEST_CASE(two_nodes_alone_can_not_be_told_apart) {
    Cluster c{2, {1}};
    c.check();
    BOOST_TEST((c.verdict(0) == CheckVerdict::unknown));
    BOOST_TEST((c.verdict(1) == CheckVerdict::unknown));
    Cluster slow{2, {}, {1}};
    slow.check();
    BOOST_TEST((slow.verdict(1) == CheckVerdict::sound), "nobody is faster");
    BOOST_TEST((CheckBook().verdict(NodeIndex(0)) == CheckVerdict::unknown));
}

BOOST_AUTO_TEST_CASE(a_link_that_fails_is_nobodys_fault) {
    CheckBook book;
    for (const auto &pair : all_pairs(range(3)))
        book.add(pair, pair.second == NodeIndex(1) ? std::nullopt : std::optional(Duration(100ms)));
    for (NodeIndex node : range(3)) BOOST_TEST((book.verdict(node) == CheckVerdict::sound));
}

BOOST_AUTO_TEST_CASE(small_differences_are_noise) {
    CheckBook book;
    auto pairs = all_pairs(range(3));
    book.add(pairs[0], Duration(100ms));
    book.add(pairs[1], Duration(150ms));
    book.add(pairs[2], Duration(20ms));
    BOOST_TEST((book.verdict(NodeIndex(0)) == CheckVerdict::sound), "five times as long, and 80 ms");
}

BOOST_AUTO_TEST_CASE(slow_work_counts_where_others_have_worked) {
    CheckBook book;
    book.add({NodeIndex(0), NodeIndex(1)}, Duration(100ms));
    book.add_work(NodeIndex(0), 900ms);
    BOOST_TEST((book.verdict(NodeIndex(0)) == CheckVerdict::sound));
    book.add_work(NodeIndex(1), 300ms);
    BOOST_TEST((book.verdict(NodeIndex(0)) == CheckVerdict::slow));
    BOOST_TEST((book.verdict(NodeIndex(1)) == CheckVerdict::sound));
}

// ---- a run of a job that gets nodes which the run before has lost ------------------------------------

namespace {

/// A group of `size` nodes n0, n1, ..., `min` of them are enough, whose job's run before has lost `suspects`.
struct NextRunGroup : TestGroup {
    NextRunGroup(std::uint32_t size, std::uint32_t min, std::vector<std::string> suspects, bool checks = true)
        : NextRunGroup(make(size, min, std::move(suspects), checks)) {}
    /// gone: never heard.
    explicit NextRunGroup(const GroupConfig &c, std::initializer_list<std::uint32_t> gone = {})
        : TestGroup(c) {
        for (std::uint32_t i = 0; i < c.nodes.size(); ++i) job_nodes.emplace_back(i);
        for (std::uint32_t node : gone) crash(node);
        start();
        run(2s);
    }
    static GroupConfig make(std::uint32_t size, std::uint32_t min, std::vector<std::string> suspects,
                            bool checks = true) {
        GroupConfig c = TestGroup::config(size, min, size);
        for (std::uint32_t i = 0; i < size; ++i) c.nodes[i].name = "n" + std::to_string(i);
        c.checks = checks;
        c.any_size = true;
        c.lost_before = std::move(suspects);
        return c;
    }
    std::size_t notes(const std::string &text) const {
        return static_cast<std::size_t>(std::ranges::count_if(
            actions<Note>(leader()), [&](const Note &n) { return n.text.find(text) != std::string::npos; }));
    }
    /// What comes of the checks that some node was told to do; `bad` fails with everybody.
    void answer(std::optional<std::uint32_t> bad = {}) {
        for (int round = 0; round < 30; ++round) {
            for (std::uint32_t node = 0; node < job_nodes.size(); ++node) {
                auto told = actions<RunCheck>(node);
                if (told.size() <= answered_[node]) continue;
                answered_[node] = told.size();
                bool ok = node != bad && told.back().partner.value() != bad;
                feed(node, LocalCheck{told.back().run, ok, 150ms, ok ? Duration(100ms) : Duration(0),
                                      ok ? "" : "no answer"});
            }
            run(500ms);
        }
    }
    std::vector<NodeIndex> world_nodes() const {
        const auto &world = view(leader()).world;
        return world ? world->nodes : std::vector<NodeIndex>{};
    }

  private:
    std::map<std::uint32_t, std::size_t> answered_;
};

}  // namespace

BOOST_AUTO_TEST_CASE(a_node_that_the_run_before_has_lost_is_checked_before_the_first_world) {
    NextRunGroup g(3, 2, {"n2", "n9"});
    BOOST_TEST(g.world_nodes().empty(), "it is waited for");
    BOOST_TEST(g.count<RunCheck>(2) == 1u);
    BOOST_TEST(g.actions<RunCheck>(2)[0].work);
    g.answer();
    BOOST_TEST((g.world_nodes() == nodes({0, 1, 2})));
    BOOST_TEST(g.notes("n2 was lost in the job's run before; checked in") == 1u);
}

BOOST_AUTO_TEST_CASE(it_is_left_out_and_given_up_where_it_fails) {
    NextRunGroup g(3, 2, {"n2"});
    g.answer(2);
    BOOST_TEST((g.world_nodes() == nodes({0, 1})));
    auto unfit = g.actions<NodeUnfit>(g.leader());
    BOOST_REQUIRE(unfit.size() == 1u);
    BOOST_TEST((unfit[0].node == NodeIndex(2) && unfit[0].its_fault));
    BOOST_TEST(g.count_asked(AskSlurm::What::shrink_to) == 1u, "as one that is lost");
}

/// The next leader takes its word for it, and Slurm takes it out as any other that fails.
BOOST_AUTO_TEST_CASE(a_leader_that_fails_leaves_the_decision_to_the_next_one) {
    NextRunGroup g(4, 2, {"n1"});
    BOOST_REQUIRE(g.leader() == 1u);
    g.answer(1);
    BOOST_TEST(g.leader() == 2u);
    BOOST_TEST(g.count<NodeUnfit>(1) == 0u);
    auto unfit = g.actions<NodeUnfit>(2);
    BOOST_REQUIRE(unfit.size() == 1u);
    BOOST_TEST((unfit[0].node == NodeIndex(1) && unfit[0].its_fault));
    BOOST_TEST(unfit[0].text.find("n1 and n0: no answer") != std::string::npos, unfit[0].text);
    BOOST_REQUIRE(g.count<Publish>(0) > 0u);
    BOOST_TEST((g.world(0).nodes == nodes({0, 2, 3})));
    BOOST_TEST((g.job_nodes == nodes({0, 2, 3})));
}

/// A run before has kept something, and the first world waits until all have said what they hold: the one
/// that has resigned as well, and at once.
BOOST_AUTO_TEST_CASE(nobody_waits_for_a_leader_that_has_resigned) {
    GroupConfig c = NextRunGroup::make(4, 2, {"n1"});
    c.slurm_restart_count = 1;
    NextRunGroup g(c);
    BOOST_REQUIRE(g.leader() == 1u);
    auto told = g.actions<RunCheck>(1);
    BOOST_REQUIRE(told.size() == 1u);
    g.feed(1, LocalCheck{told[0].run, false, {}, {}, "a GPU miscalculates", true});
    BOOST_REQUIRE(g.count<Publish>(0) == 0u);
    g.run(3s);
    BOOST_REQUIRE(g.count<Publish>(0) > 0u);
    BOOST_TEST((g.world(0).nodes == nodes({0, 2, 3})));
    BOOST_TEST(g.count<RunCheck>(1) == 1u, "it is not checked twice");
}

/// The first of them resigns since there is a sound one, whoever stands next.
BOOST_AUTO_TEST_CASE(two_that_are_unfit_leave_the_lead_to_one_that_is_sound) {
    NextRunGroup g(4, 1, {"n1", "n2"});
    BOOST_REQUIRE(g.leader() == 1u);
    for (int round = 0; round < 30; ++round) {
        for (std::uint32_t node : {1u, 2u}) {
            auto told = g.actions<RunCheck>(node);
            if (!told.empty())
                g.feed(node, LocalCheck{told.back().run, false, {}, {}, "a GPU miscalculates", true});
        }
        g.run(500ms);
    }
    BOOST_TEST(g.leader() == 3u);
    BOOST_TEST(g.count<RunCheck>(1) == 1u);
    BOOST_TEST(g.count<RunCheck>(2) <= 1u);
    BOOST_TEST((g.world_nodes() == nodes({0, 3})));
    BOOST_TEST((g.job_nodes == nodes({0, 3})));
}

/// All have been lost before, and the leader and the batch host are unfit.
BOOST_AUTO_TEST_CASE(who_is_unfit_helps_no_other_to_pass) {
    NextRunGroup g(5, 2, {"n0", "n1", "n2", "n3", "n4"});
    BOOST_REQUIRE(g.leader() == 1u);
    std::map<std::uint32_t, std::size_t> answered;
    for (int round = 0; round < 60; ++round) {
        for (std::uint32_t node = 0; node < 5; ++node) {
            auto told = g.actions<RunCheck>(node);
            if (told.size() <= answered[node]) continue;
            answered[node] = told.size();
            bool says = node == 1, ok = node > 1 && told.back().partner > NodeIndex(1);
            g.feed(node, LocalCheck{told.back().run, ok, 150ms, ok ? Duration(100ms) : Duration(0),
                                    ok ? "" : "no", says});
        }
        g.run(500ms);
    }
    BOOST_TEST(g.leader() > 1u);
    BOOST_TEST((g.world_nodes() == nodes({2, 3, 4})));
}

/// Nobody is left to check the batch host with, which has passed before: that one is used in the end.
BOOST_AUTO_TEST_CASE(who_knows_that_it_is_unfit_is_not_used_with_the_rest) {
    NextRunGroup g(3, 1, {"n0", "n1"});
    BOOST_REQUIRE(g.leader() == 1u);
    auto told = g.actions<RunCheck>(0);
    while (g.count<RunCheck>(1) == 0 && !told.empty()) {
        g.feed(0, LocalCheck{told.back().run, true, 150ms, 100ms, "", false});
        g.run(500ms);
        told = g.actions<RunCheck>(0);
    }
    BOOST_REQUIRE(g.count<RunCheck>(1) > 0u);
    g.feed(1, LocalCheck{g.actions<RunCheck>(1).back().run, false, {}, {}, "a GPU miscalculates", true});
    g.crash(2);
    g.run(Timings{}.join * 4);
    BOOST_TEST(g.leader() == 1u);
    BOOST_TEST((g.world_nodes() == nodes({0})));
}

/// It has failed, and nobody is there to tell it so again: there is no lack of time to check it.
BOOST_AUTO_TEST_CASE(who_has_resigned_and_is_left_alone_is_not_used) {
    GroupConfig c = NextRunGroup::make(2, 1, {"n0"});
    c.batch_host.reset();
    NextRunGroup g(c);
    BOOST_REQUIRE(g.leader() == 0u);
    auto told = g.actions<RunCheck>(0);
    BOOST_REQUIRE(told.size() == 1u);
    g.feed(0, LocalCheck{told[0].run, false, {}, {}, "a GPU miscalculates", true});
    g.crash(1);
    g.run(Timings{}.join * 4);
    BOOST_TEST(g.world_nodes().empty());
    BOOST_TEST(g.notes("used all the same") == 0u);
    BOOST_TEST(g.count_asked(AskSlurm::What::requeue) > 0u);
}

/// The others die before one of them leads. It is not used for all that.
BOOST_AUTO_TEST_CASE(who_has_resigned_leads_where_nobody_else_is_left) {
    NextRunGroup g(4, 1, {"n1"});
    BOOST_REQUIRE(g.leader() == 1u);
    auto told = g.actions<RunCheck>(1);
    BOOST_REQUIRE(told.size() == 1u);
    g.feed(1, LocalCheck{told[0].run, false, {}, {}, "a GPU miscalculates", true});
    BOOST_REQUIRE(g.leader() != 1u);
    g.crash(2);
    g.crash(3);
    g.run(Timings{}.join + 20s);
    BOOST_TEST(g.leader() == 1u);
    BOOST_TEST((g.world_nodes() == nodes({0})));
    BOOST_TEST((g.job_nodes == nodes({0, 1})));
}

BOOST_AUTO_TEST_CASE(too_few_are_left_without_it_and_the_job_is_requeued) {
    NextRunGroup g(3, 3, {"n2"});
    g.answer(2);
    BOOST_TEST(g.world_nodes().empty());
    g.run(Timings{}.join);
    BOOST_TEST(g.count_asked(AskSlurm::What::requeue) == 1u);
}

/// Nobody answers, and each check takes a minute: that is no lack of nodes.
BOOST_AUTO_TEST_CASE(where_checks_take_too_long_the_rest_is_used_with_a_warning) {
    NextRunGroup g(6, 6, {"n0", "n1", "n2", "n3", "n4", "n5"});
    g.run(Timings{}.join * 3 / 2);
    BOOST_TEST(g.world_nodes().empty());
    g.run(Timings{}.join * 4);
    BOOST_TEST(g.world_nodes().size() == 6u);
    BOOST_TEST(g.notes("not checked in time, and used all the same") == 1u);
    BOOST_TEST(g.count_asked(AskSlurm::What::requeue) == 0u);
}

BOOST_AUTO_TEST_CASE(of_two_nobody_can_tell_and_both_are_used) {
    NextRunGroup g(2, 2, {"n1"});
    g.answer(1);
    BOOST_TEST((g.world_nodes() == nodes({0, 1})));
    BOOST_TEST(g.notes("it can not be told whose fault it is; it is used") == 1u);
}

BOOST_AUTO_TEST_CASE(all_of_them_may_be_under_suspicion) {
    NextRunGroup g(3, 2, {"n0", "n1", "n2"});
    g.answer();
    BOOST_TEST((g.world_nodes() == nodes({0, 1, 2})));
}

/// The leader says so of itself; the batch host can not lead.
struct UnfitLeader : NextRunGroup {
    UnfitLeader(std::uint32_t size, std::uint32_t min, std::initializer_list<std::uint32_t> gone = {})
        : NextRunGroup(config_of(size, min), gone) {
        BOOST_REQUIRE(leader() == 1u);
        auto told = actions<RunCheck>(1);
        BOOST_REQUIRE(told.size() == 1u);
        feed(1, LocalCheck{told[0].run, false, {}, {}, "a GPU miscalculates", true});
        run(1s);
    }
    static GroupConfig config_of(std::uint32_t size, std::uint32_t min) {
        GroupConfig c = make(size, min, {"n1"});
        c.copies = 1;
        return c;
    }
};

BOOST_AUTO_TEST_CASE(a_leader_that_fails_stays_where_the_batch_host_alone_is_left) {
    UnfitLeader g(2, 1);
    BOOST_TEST(g.count<NodeUnfit>(1) == 1u);
    BOOST_TEST((g.world_nodes() == nodes({0})));
    BOOST_TEST(g.world(0).partners.empty(), "it keeps no copies either");
    g.run(Timings{}.join * 2);
    BOOST_TEST(g.leader() == 1u);
    BOOST_TEST(g.count<End>(1) == 0u);
    BOOST_TEST(g.asked.empty());
    g.fail(0, 0, 1 << 8, 7);
    g.run(2s);
    BOOST_TEST(g.world(0).restart_count == 1u);
    BOOST_TEST((g.world_nodes() == nodes({0})), "nor is it used later");
}

/// Their ranks have a lease, and nobody else can give it.
BOOST_AUTO_TEST_CASE(an_unfit_leader_that_is_needed_is_back_within_the_lease) {
    UnfitLeader g(2, 1);
    BOOST_REQUIRE((g.world_nodes() == nodes({0})));
    g.cut(1);
    g.run(1100ms);
    g.heal();
    BOOST_TEST(g.leader() != 1u, "no majority has answered");
    g.run(Timings{}.agent_lease - 1100ms);
    BOOST_TEST(g.leader() == 1u);
    BOOST_TEST(g.world(0).restart_count == 0u);
}

/// The third one could lead, and is not heard.
BOOST_AUTO_TEST_CASE(a_leader_that_fails_does_not_leave_to_one_that_is_not_there) {
    UnfitLeader g(3, 1, {2});
    g.run(Timings{}.join + 5s);
    BOOST_TEST(g.leader() == 1u);
    BOOST_TEST(g.count<End>(1) == 0u);
    BOOST_TEST((g.world_nodes() == nodes({0})));
    BOOST_TEST((g.job_nodes == nodes({0, 1})));
}

BOOST_AUTO_TEST_CASE(a_leader_that_fails_and_leaves_too_few_has_the_job_requeued_without_itself) {
    UnfitLeader g(2, 2);
    g.run(Timings{}.join + 2s);
    BOOST_TEST(g.world_nodes().empty());
    BOOST_REQUIRE(g.count_asked(AskSlurm::What::requeue) == 1u);
    BOOST_REQUIRE(g.count<End>(1) == 1u);
    BOOST_TEST((g.actions<End>(1)[0].excluded == nodes({1})));
}

/// There is nobody to check it with, and nobody comes.
BOOST_AUTO_TEST_CASE(a_suspect_that_is_left_alone_is_used_in_the_end) {
    GroupConfig c = NextRunGroup::make(2, 1, {"n1"});
    c.batch_host.reset();
    NextRunGroup g(c, {0});
    const Duration join = c.timings.join;
    g.run(join + 10s);
    BOOST_REQUIRE(g.leader() == 1u);
    BOOST_TEST((g.job_nodes == nodes({1})));
    g.run(join * 3 / 2);
    BOOST_TEST(g.world_nodes().empty());
    BOOST_TEST(g.count<RunCheck>(1) == 0u);
    g.run(join);
    BOOST_TEST((g.world_nodes() == nodes({1})));
    BOOST_TEST(g.notes("n1: lost in the job's run before, not checked in time, and used all the same") == 1u);
    BOOST_TEST(g.count_asked(AskSlurm::What::requeue) == 0u);
}

namespace {

/// Two work, two are spares, and two copies or one parity need one of the spares.
GroupConfig with_spares(std::vector<std::string> suspects, CodeSize code) {
    GroupConfig c = NextRunGroup::make(4, 2, std::move(suspects));
    c.max_nodes = c.spares = 2;
    c.code = code;
    c.copies = code.data > 0 ? code.parity : 2;
    return c;
}

bool holds(const TestGroup &g, std::uint32_t node) {
    return contains(g.world(g.leader()).partners, NodeIndex(node));
}

}  // namespace

BOOST_DATA_TEST_CASE(a_suspect_keeps_no_copies_of_others_before_its_check,
                     boost::unit_test::data::make({0u, 2u}), data) {
    NextRunGroup g(with_spares({"n2"}, {data, data > 0 ? 1u : 0u}));
    BOOST_TEST_REQUIRE((g.world_nodes() == nodes({0, 1})), "a suspect spare is not waited for");
    BOOST_TEST(!holds(g, 2));
    BOOST_TEST(holds(g, 3));
    g.answer();
    BOOST_TEST(g.notes("n2 was lost in the job's run before; checked in") == 1u);
    g.cut(3);
    g.run(4s);
    g.fail(0, 0, 1 << 8, 7);
    g.run(2s);
    BOOST_TEST((g.world_nodes() == nodes({0, 1})));
    BOOST_TEST(holds(g, 2));
    BOOST_TEST(!holds(g, 3));
}

BOOST_DATA_TEST_CASE(where_all_spares_are_suspects_there_are_fewer_copies_at_first,
                     boost::unit_test::data::make({0u, 2u}), data) {
    NextRunGroup g(with_spares({"n2", "n3"}, {data, data > 0 ? 1u : 0u}));
    BOOST_REQUIRE((g.world_nodes() == nodes({0, 1})));
    BOOST_TEST((!holds(g, 2) && !holds(g, 3)));
    BOOST_TEST((g.world(g.leader()).partners == nodes({1, 0})));
}

/// Of those under suspicion one is fit.
BOOST_AUTO_TEST_CASE(a_suspect_that_has_failed_keeps_no_copies_either) {
    NextRunGroup g(with_spares({"n2", "n3"}, {}));
    g.answer(2);
    BOOST_TEST(g.count<NodeUnfit>(g.leader()) == 1u);
    g.fail(0, 0, 1 << 8, 7);
    g.run(2s);
    BOOST_TEST(!holds(g, 2));
    BOOST_TEST(holds(g, 3));
}

BOOST_AUTO_TEST_CASE(a_later_leader_trusts_those_of_the_world) {
    NextRunGroup g(4, 2, {"n2"});
    g.answer();
    BOOST_REQUIRE((g.world_nodes() == nodes({0, 1, 2, 3})));
    auto checks = g.count<RunCheck>(2);
    g.cut(g.leader());
    g.run(8s);
    BOOST_TEST(g.world_nodes().size() == 3u);
    BOOST_TEST(g.count<RunCheck>(2) == checks);
}

BOOST_AUTO_TEST_CASE(without_movers_nobody_is_checked) {
    NextRunGroup g(3, 2, {"n2"}, false);
    BOOST_TEST((g.world_nodes() == nodes({0, 1, 2})));
}

// ---- a group whose lost node comes back -----------------------------------------------------------

namespace {

GroupConfig returning(std::uint32_t size) {
    GroupConfig c = TestGroup::config(size, 1, size);
    for (std::uint32_t i = 0; i < size; ++i) c.nodes[i].name = "n" + std::to_string(i);
    c.replacements = c.any_size = c.checks = true;
    if (size == 2) c.batch_host.reset();  // one of them alone can lead
    return c;
}

/// The last node is lost, and asks to join again.
struct Returning : TestGroup {
    std::uint32_t lost, back;
    explicit Returning(std::uint32_t size = 4) : TestGroup(returning(size)), lost(size - 1), back(size) {
        for (std::uint32_t i = 0; i < size; ++i) job_nodes.emplace_back(i);
        start();
        cut(lost);
        run(4s);
        add("n" + std::to_string(lost), 57);
        run(500ms);
    }
    std::size_t notes(const std::string &text) const {
        std::size_t found = 0;
        for (const Note &n : actions<Note>(leader())) found += n.text.find(text) != std::string::npos;
        return found;
    }
    bool is_in() const { return view(leader()).roster.firm_counted > 0; }
    /// Each check that some node was told to do and has not answered: what comes of it.
    void answer(std::function<std::optional<Duration>(std::uint32_t, std::uint32_t)> meet,
                Duration work = 150ms) {
        for (int round = 0; round < 6; ++round) {
            for (std::uint32_t node = 0; node <= back; ++node) {
                auto told = actions<RunCheck>(node);
                if (told.size() <= answered_[node]) continue;
                answered_[node] = told.size();
                const RunCheck &check = told.back();
                auto time = meet(node, check.partner.value());
                feed(node, LocalCheck{check.run, time.has_value(), check.work ? work : Duration(0),
                                      time.value_or(Duration(0)),
                                      !time        ? "no answer"
                                      : check.work ? "sound GPUs: 8"
                                                   : ""});
            }
            run(500ms);
        }
    }

  private:
    std::map<std::uint32_t, std::size_t> answered_;
};

}  // namespace

BOOST_AUTO_TEST_CASE(a_lost_node_that_comes_back_is_let_in_after_its_check) {
    Returning g;
    auto told = g.actions<RunCheck>(g.back);
    BOOST_REQUIRE(told.size() == 1u);
    BOOST_TEST(told[0].work);
    g.run(3s);
    BOOST_TEST(g.actions<RunCheck>(g.back).size() == 1u, "an order is said again, and done once");
    BOOST_TEST(!g.is_in());
    g.answer([](auto, auto) { return Duration(100ms); });
    BOOST_TEST(g.is_in());
    BOOST_TEST(g.notes("n3 has joined the group (job 57), checked in") == 1u);
    BOOST_TEST(g.notes("exchange 100 ms (others 100 ms), sound GPUs: 8") == 1u, "said once");
    for (std::uint32_t member = 0; member < 3; ++member)
        for (const RunCheck &check : g.actions<RunCheck>(member))
            BOOST_TEST(!check.work, "its ranks are not held up");
}

BOOST_AUTO_TEST_CASE(another_name_is_let_in_unchecked) {
    Returning g;
    BOOST_TEST(!g.is_in());
    Returning other(5);
    TestGroup plain(returning(4));
    plain.job_nodes = nodes({0, 1, 2, 3});
    plain.start();
    plain.cut(3);
    plain.run(4s);
    auto node = plain.add("n9", 58);
    plain.run(500ms);
    BOOST_TEST(plain.view(plain.leader()).roster.firm_counted == 1u);
    BOOST_TEST(plain.count<RunCheck>(node) == 0u);
}

BOOST_AUTO_TEST_CASE(a_node_that_fails_with_two_others_is_refused) {
    Returning g;
    auto back = g.back;
    g.answer([back](auto a, auto b) {
        return a == back || b == back ? std::nullopt : std::optional<Duration>(100ms);
    });
    BOOST_TEST(!g.is_in());
    auto unfit = g.actions<NodeUnfit>(g.leader());
    BOOST_REQUIRE(unfit.size() == 1u);
    BOOST_TEST((unfit[0].node == NodeIndex(back) && unfit[0].its_fault));
    BOOST_TEST(unfit[0].text.find("no answer") != std::string::npos);
    auto ends = g.actions<End>(back);
    BOOST_REQUIRE(ends.size() == 1u);
    BOOST_TEST((ends[0].exit_code == 1 && ends[0].dismissed && ends[0].evicted));
    BOOST_TEST(ends[0].message.find("n3 is not let into the group again: two-node check failed") == 0u);
    g.run(5s);
    BOOST_TEST(g.count_asked(AskSlurm::What::end_companion) == 1u);
    for (std::uint32_t member = 0; member < 3; ++member) BOOST_TEST(g.count<End>(member) == 0u);
}

BOOST_AUTO_TEST_CASE(a_slow_node_is_refused) {
    Returning g;
    auto back = g.back;
    g.answer([back](auto a, auto b) { return Duration(a == back || b == back ? 3s : 400ms); });
    BOOST_TEST(!g.is_in());
    BOOST_TEST(g.actions<NodeUnfit>(g.leader()).size() == 1u);
    BOOST_TEST(g.notes("it is slow") == 1u);
}

/// Its processor has miscalculated, say: no partner has a part in that, and no further meeting makes it good.
BOOST_AUTO_TEST_CASE(a_node_that_is_unfit_by_its_own_word_is_refused_at_once) {
    for (std::uint32_t members : {2u, 4u}) {
        Returning g(members);
        auto told = g.actions<RunCheck>(g.back);
        BOOST_REQUIRE(told.size() == 1u);
        BOOST_TEST((told[0].work && told[0].gpus));
        g.feed(g.back, LocalCheck{told[0].run, false, {}, {}, "a GPU miscalculates", true});
        g.run(500ms);
        auto unfit = g.actions<NodeUnfit>(g.leader());
        BOOST_REQUIRE(unfit.size() == 1u);
        BOOST_TEST((unfit[0].node == NodeIndex(g.back) && unfit[0].its_fault));
        BOOST_TEST(unfit[0].text.find("a GPU miscalculates") != std::string::npos);
        g.answer([](auto, auto) { return Duration(100ms); });
        BOOST_TEST(!g.is_in());
        BOOST_TEST(g.actions<RunCheck>(g.back).size() == 1u);
    }
}

/// In a group of two there is one other only, which leads and works.
BOOST_AUTO_TEST_CASE(with_one_partner_a_sound_node_is_let_in) {
    Returning g(2);
    auto told = g.actions<RunCheck>(g.back);
    BOOST_REQUIRE(told.size() == 1u);
    BOOST_TEST((told[0].partner == NodeIndex(0)));
    BOOST_TEST(told[0].work);
    BOOST_TEST(!g.is_in());
    g.answer([](auto, auto) { return Duration(100ms); });
    BOOST_TEST(g.is_in());
    BOOST_TEST(g.notes("n1 has joined the group (job 57), checked in") == 1u);
    BOOST_TEST(g.notes("exchange 100 ms") == 1u);
    BOOST_TEST(g.notes("(others") == 0u, "there is nobody to compare it with");
    BOOST_TEST(g.count<NodeUnfit>(g.leader()) == 0u);
    BOOST_TEST(g.count<RunCheck>(g.back) == 1u);
    BOOST_TEST(g.count<RunCheck>(0) == 0u);
}

/// With one other nobody can tell whose fault it is: tried again, then refused, and nobody is drained.
BOOST_AUTO_TEST_CASE(with_one_partner_a_failure_says_nothing) {
    Returning g(2);
    auto never = [](auto, auto) -> std::optional<Duration> { return std::nullopt; };
    g.answer(never);
    BOOST_TEST(g.count<NodeUnfit>(g.leader()) == 0u);
    g.run(5s);
    g.answer(never);
    BOOST_TEST(!g.is_in());
    auto unfit = g.actions<NodeUnfit>(g.leader());
    BOOST_REQUIRE(unfit.size() == 1u);
    BOOST_TEST(!unfit[0].its_fault);
}

BOOST_AUTO_TEST_CASE(a_check_of_which_nothing_is_heard_has_failed) {
    Returning g;
    g.run(80s);
    BOOST_TEST(!g.is_in());
    BOOST_TEST(g.notes("no answer in time") == 0u, "with nobody: it may be the others' fault");
    g.run(80s);
    BOOST_TEST(g.notes("no answer in time") == 1u);
    BOOST_TEST(!g.is_in());
}

/// A new leader looks at it again.
BOOST_AUTO_TEST_CASE(a_leader_that_falls_takes_the_check_with_it) {
    Returning g(5);
    auto first = g.leader();
    g.crash(first);
    g.run(4s);
    BOOST_REQUIRE(g.leader() != first);
    BOOST_TEST(!g.is_in());
    g.answer([](auto, auto) { return Duration(100ms); });
    BOOST_TEST(g.is_in());
}

BOOST_AUTO_TEST_SUITE_END()
