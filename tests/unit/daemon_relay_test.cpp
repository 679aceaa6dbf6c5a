// SPDX-License-Identifier: Apache-2.0
#include "daemon/relay.h"

#include <boost/test/unit_test.hpp>

#include "common/manual_loop.h"
#include "daemon/memory_slurm.h"
#include "transport/memory_network.h"

using namespace dlrover;
using namespace dlrover::daemon;
using namespace std::chrono_literals;

namespace {

constexpr std::uint32_t root = 0, alice = 1000, bob = 1001;

/// The relay of a login host. Node n1 runs job 7 of alice and 8 of bob, hears every question and never
/// answers.
struct Login {
    ManualLoop loop;
    transport::MemoryHub hub{loop, {}};
    MemorySlurm slurm{loop};
    std::unique_ptr<transport::PeerNetwork> peers = hub.join("login"), n1 = hub.join("n1");
    std::string self = "login";
    Relay relay{loop, slurm, *peers, self};
    std::size_t heard = 0;     ///< questions
    std::size_t answered = 0;  ///< by the relay

    Login() {
        for (auto [job, uid] : {std::pair(7u, alice), std::pair(8u, bob)}) {
            SlurmJob &made = slurm.jobs[JobId(job)];
            made.running = true;
            made.uid = uid;
            made.nodes = {"n1"};
        }
        slurm.addresses["n1"] = "10.0.0.1";
        peers->set_callbacks({[](const auto &, auto) {},
                              [this](const std::string &node, bool up) { relay.on_link(node, up); }});
        n1->set_callbacks({[this](const auto &, auto) { ++heard; }, [](const auto &, bool) {}});
    }
    void ask(std::uint32_t uid, std::uint32_t job, Relay::Nodes known = {}) {
        local::StatusRequestT request;
        request.job_id = job;
        relay.ask(
            uid, JobId(job), proto::make_local(1, std::move(request)),
            [this](Relay::Answers answers) {
                BOOST_TEST(answers.empty());
                ++answered;
            },
            std::move(known));
    }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(daemon_relay, Login)

BOOST_AUTO_TEST_CASE(a_user_has_four_questions_under_way) {
    for (int i = 0; i < 4; ++i) ask(alice, 7);
    BOOST_TEST(answered == 0u);
    ask(alice, 7);
    BOOST_TEST(answered == 1u, "the fifth is not asked");
    ask(bob, 8);
    loop.advance(1s);
    BOOST_TEST(answered == 1u);
    BOOST_TEST(heard == 5u);
    loop.advance(3s);
    BOOST_TEST(answered == 6u);
    ask(alice, 7);
    BOOST_TEST(answered == 6u, "there is room again");
    loop.advance(1s);
    BOOST_TEST(heard == 6u);
}

BOOST_AUTO_TEST_CASE(all_together_have_sixty_four) {
    for (int i = 0; i < 64; ++i) ask(root, 7);
    BOOST_TEST(answered == 0u);
    for (auto [uid, job] : {std::pair(root, 7u), std::pair(alice, 7u), std::pair(bob, 8u)}) ask(uid, job);
    BOOST_TEST(answered == 3u);
    loop.advance(4s);
    BOOST_TEST(answered == 67u);
    BOOST_TEST(heard == 64u);
    ask(bob, 8);
    BOOST_TEST(answered == 67u);
}

BOOST_AUTO_TEST_CASE(what_slurm_does_not_answer_is_no_question_for_ever) {
    slurm.away = true;
    for (int i = 0; i < 4; ++i) ask(alice, 7);
    loop.advance(1s);
    BOOST_TEST(answered == 4u);
    slurm.away = false;
    ask(alice, 7);
    BOOST_TEST(answered == 4u);
}

/// A login host knows no member: there Slurm's late word is waited for.
BOOST_AUTO_TEST_CASE(a_slow_slurm_is_waited_for_where_nobody_is_linked) {
    slurm.silent = true;
    ask(alice, 7);
    loop.advance(5s);
    BOOST_TEST(answered == 0u);
    slurm.speak();
    loop.advance(1s);
    BOOST_TEST(heard == 1u);
    loop.advance(3s);
    BOOST_TEST(answered == 1u);
    slurm.silent = true;
    ask(alice, 7);
    loop.advance(17s);
    BOOST_TEST(answered == 2u, "not for ever");
}

/// Nodes of the group that are linked to this one are asked all the same.
BOOST_AUTO_TEST_CASE(without_slurms_word_members_are_asked) {
    peers->connect_to("n1", "10.0.0.1");
    loop.advance(1s);
    for (bool late : {false, true}) {
        std::size_t before = heard;
        slurm.away = !late;
        slurm.silent = late;
        ask(alice, 7, {{}, {"login", "n1", "n9"}});
        loop.advance(500ms);
        BOOST_TEST(heard == before + (late ? 0 : 1));
        loop.advance(700ms);
        BOOST_TEST(heard == before + 1u);
        loop.advance(3s);
        BOOST_TEST(answered == 1u + late);
    }
    slurm.speak();
    loop.advance(3s);
    BOOST_TEST(heard == 2u, "Slurm's late word is not heeded");
    BOOST_TEST(answered == 2u);
}

BOOST_AUTO_TEST_SUITE_END()
