// SPDX-License-Identifier: Apache-2.0
// What ranks ask of dlrover-pmixd, and what they are answered and told.
#include <grp.h>

#include <fstream>
#include <set>

#include "pmixd_nodes.h"

using namespace dlrover;
using namespace dlrover::test;
using namespace std::chrono_literals;

namespace {

/// A folder with dlrover-pmixd, and beside it a script in place of the program that asks Slurm.
struct Installation {
    std::filesystem::path folder;

    explicit Installation(const std::string &script) {
        char name[] = "/tmp/dlrover-test-XXXXXX";
        folder = ::mkdtemp(name);
        std::filesystem::copy_file(TEST_PMIXD, pmixd());
        std::ofstream(folder / "dlrover-allocate") << "#!/bin/sh\ncd " << folder.string() << "\n"
                                                   << script << "\n";
        std::filesystem::permissions(folder / "dlrover-allocate", std::filesystem::perms::owner_all);
    }
    ~Installation() { std::filesystem::remove_all(folder); }
    std::string pmixd() const { return folder / "dlrover-pmixd"; }
    /// What the script has written to a file of this name.
    std::string said(const char *name) const {
        std::ifstream file(folder / name);
        return {std::istreambuf_iterator<char>(file), {}};
    }
};

/// libpmix's own server, with one rank.
class BareServer {
  public:
    BareServer() {
        char name[] = "/tmp/dlrover-test-XXXXXX";
        folder_ = ::mkdtemp(name);
        int in[2], out[2];
        BOOST_REQUIRE((::pipe2(in, O_CLOEXEC) == 0 && ::pipe2(out, O_CLOEXEC) == 0));
        pid_ = ::fork();
        BOOST_REQUIRE(pid_ >= 0);
        if (pid_ == 0) {
            ::dup2(in[0], STDIN_FILENO);
            ::dup2(out[1], STDOUT_FILENO);
            ::execl(TEST_PMIX_BARE_SERVER, TEST_PMIX_BARE_SERVER, folder_.c_str(), nullptr);
            ::_exit(127);
        }
        UniqueFd answers(out[0]);
        ::close(in[0]);
        ::close(out[1]);
        stdin_.reset(in[1]);
        std::string text;
        char part[4096];
        for (ssize_t n; !text.ends_with("\n\n") && (n = ::read(answers.get(), part, sizeof part)) > 0;)
            text.append(part, static_cast<std::size_t>(n));
        BOOST_REQUIRE(text.ends_with("\n\n"));
        for (std::size_t at = 0, end; (end = text.find('\n', at)) != at; at = end + 1)
            variables.push_back(text.substr(at, end - at));
    }
    ~BareServer() {
        stdin_.reset();
        ::waitpid(pid_, nullptr, 0);
        std::filesystem::remove_all(folder_);
    }
    std::vector<std::string> variables;

  private:
    std::string folder_;
    pid_t pid_ = -1;
    UniqueFd stdin_;
};

constexpr uid_t nobody = 65534;
constexpr int not_let_in = 2;  ///< exit status of pmix_client

/// Another user, who says that he is this one.
void pose() {
    ::setenv("DLROVER_TEST_CLAIMED_UID", std::to_string(::getuid()).c_str(), 1);
    ::setenv("DLROVER_TEST_CLAIMED_GID", std::to_string(::getgid()).c_str(), 1);
    if (::setgroups(0, nullptr) != 0 || ::setgid(nobody) != 0 || ::setuid(nobody) != 0) ::_exit(126);
}

boost::test_tools::assertion_result may_become_another_user(boost::unit_test::test_unit_id) {
    boost::test_tools::assertion_result can = ::geteuid() == 0;
    can.message() << "only root can";
    return can;
}

}  // namespace

BOOST_AUTO_TEST_CASE(another_user_who_knows_port_and_name_can_not_join,
                     *boost::unit_test::precondition(may_become_another_user)) {
    Group g;
    for (int i = 0; i < 3; ++i) {
        g.start(0, "publish", pose);
        auto ended = g.wait(0);
        BOOST_TEST(WEXITSTATUS(ended.wait_status) == not_let_in, ended.output);
    }
    // The rank that he posed as is none the worse.
    g.start_all("collect");
    g.expect_success();
}

/// That he is kept out there is the guard's doing (accept_guard.h): what he does is enough for libpmix alone.
BOOST_AUTO_TEST_CASE(libpmix_alone_lets_another_user_in,
                     *boost::unit_test::precondition(may_become_another_user)) {
    BareServer server;
    Group g;
    g.nodes[0].ready.variables = server.variables;
    g.start(0, "in", pose);
    auto ended = g.wait(0);
    BOOST_TEST(ended.wait_status == 0, ended.output);
    // Without his lie he is refused.
    g.start(1, "in", [] {
        pose();
        ::unsetenv("DLROVER_TEST_CLAIMED_UID");
        ::unsetenv("DLROVER_TEST_CLAIMED_GID");
        ::setenv("PMIX_RANK", "0", 1);
    });
    ended = g.wait(1);
    BOOST_TEST(WEXITSTATUS(ended.wait_status) == not_let_in, ended.output);
}

BOOST_AUTO_TEST_CASE(ranks_of_two_nodes_exchange_data) {
    Group g;
    g.start_all("collect");
    g.expect_success();
    BOOST_TEST(g.nodes[1].carried > 0);
}

BOOST_AUTO_TEST_CASE(ranks_of_two_nodes_ask_each_other) {
    Group g;
    g.start_all("modex");
    g.expect_success();
}

BOOST_AUTO_TEST_CASE(a_fence_ends_with_the_generation_and_the_next_one_is_clean) {
    Group g;
    for (std::uint64_t generation = 1; generation <= 3; ++generation) {
        if (generation > 1) g.serve(generation);
        for (std::uint32_t rank : {0u, 1u, 2u}) g.start(rank, "wait");
        g.pass(500ms);
        for (auto &node : g.nodes) node.stop_ranks();
        // The third rank's node waits for the other rank there: PMIx has not told anybody.
        for (std::uint32_t rank : {0u, 1u}) g.expect_failure(rank, "fence: lost connection\n");
        ::kill(g.ranks[2], SIGKILL);
        BOOST_TEST(WTERMSIG(g.wait(2).wait_status) == SIGKILL);
    }
    g.serve(4);
    g.start_all("collect");
    g.expect_success();
}

BOOST_AUTO_TEST_CASE(a_generation_may_begin_while_ranks_of_the_last_one_are_left) {
    Group g;
    for (std::uint32_t rank = 0; rank < 4; ++rank) g.start(rank, "sleep");
    g.pass(500ms);
    auto old = std::exchange(g.ranks, {});
    g.serve(2);
    g.start_all("collect");
    g.expect_success();
    for (auto [rank, pid] : old) {
        ::kill(pid, SIGKILL);
        ::waitpid(pid, nullptr, 0);
    }
    g.start_all("modex");
    g.expect_success();
    g.serve(3);
    g.start_all("collect");
    g.expect_success();
}

/// It costs no process as long as no rank has connected.
BOOST_AUTO_TEST_CASE(a_server_that_nobody_uses_goes_on_with_the_next_generation) {
    Group g;
    std::vector<std::string> before = g.nodes[0].ready.variables;
    for (std::uint64_t generation : {2, 3, 4}) g.serve(generation);
    g.pass(50ms);
    BOOST_TEST(!g.nodes[0].used);
    BOOST_TEST((g.nodes[0].ready.variables != before), "the namespace is another one");
    g.start(0, "publish");
    g.start(1, "publish");
    for (std::uint32_t rank : {0u, 1u}) g.wait(rank);
    BOOST_TEST(g.nodes[0].used);
    BOOST_TEST(!g.nodes[1].used);
    // One node's goes on in another process, and the other one's in this one.
    g.serve(5);
    g.start_all("collect");
    g.expect_success();
    BOOST_TEST(g.nodes[1].used);
}

BOOST_AUTO_TEST_CASE(words_of_abort_reach_the_daemon) {
    Group g;
    g.start(3, "abort");
    (void)g.wait(3);
    g.pass(100ms);
    BOOST_REQUIRE(g.nodes[1].aborts.size() == 1u);
    BOOST_TEST(g.nodes[1].aborts[0].local_rank == 1);
    BOOST_TEST(g.nodes[1].aborts[0].status == 5);
    BOOST_TEST(g.nodes[1].aborts[0].text == "no more");
    // Of some alone: refused, which the library of 4.2.2 does not tell the rank.
    g.start(2, "abort of one");
    (void)g.wait(2);
    g.pass(100ms);
    BOOST_TEST(g.nodes[1].aborts.size() == 1u);
}

BOOST_AUTO_TEST_CASE(what_is_not_served_is_refused) {
    Group g;
    const std::pair<const char *, const char *> refused[] = {
        {"spawn", "spawn"},           {"first read", "publish"}, {"pause", "control"},
        {"query qualified", "query"}, {"leave", "leave"},        {"credential", "credential"},
        {"validate", "validate"},     {"pull", "pull"},          {"fabric update", "update"}};
    for (auto [what, call] : refused) {
        BOOST_TEST_CONTEXT(what) {
            g.start(1, what);
            g.expect_failure(1, std::string(call) + ": not supported\n");
        }
    }
}

/// It knows the server's address, and is no rank.
BOOST_AUTO_TEST_CASE(a_tool_is_not_let_in) {
    Group g;
    g.start(0, "tool", [] {
        for (const char *variable : {"PMIX_NAMESPACE", "PMIX_RANK"}) ::unsetenv(variable);
    });
    g.expect_failure(0, "attach: ");
    g.start_all("collect");
    g.expect_success();
}

BOOST_AUTO_TEST_CASE(a_fence_with_another_namespace_is_refused) {
    Group g;
    g.start(0, "wait for a stranger");
    g.expect_failure(0, "fence: not supported\n");
}

/// Its sender is not told (4.2.2).
BOOST_AUTO_TEST_CASE(events_that_are_not_served_stay_on_their_node) {
    Group g;
    for (const char *what : {"event for the manager", "event of an end"}) {
        g.start_all(what);
        g.expect_success();
    }
}

/// The library in the server does these by itself (4.2.2): docs/pmix.md says so.
BOOST_AUTO_TEST_CASE(what_libpmix_serves_by_itself) {
    Group g;
    for (const char *what : {"log", "clean up", "file", "heartbeat", "fabric", "distances", "resolve",
                             "connect", "disconnect"}) {
        for (std::uint32_t rank : {0u, 1u}) g.start(rank, what);
        for (std::uint32_t rank : {0u, 1u}) {
            auto ended = g.wait(rank);
            BOOST_TEST(ended.wait_status == 0, what << ": " << ended.output);
        }
    }
}

BOOST_AUTO_TEST_CASE(ranks_of_two_nodes_find_what_others_publish) {
    Group g;
    g.start_all("published");
    g.expect_success();
    g.start(2, "publish again");
    g.expect_failure(2, "publish: duplicate key\n");
}

BOOST_AUTO_TEST_CASE(what_is_published_stays_for_the_next_generation) {
    Group g;
    g.start(3, "publish");
    BOOST_TEST(g.wait(3).wait_status == 0);
    g.start(1, "look up");
    BOOST_TEST(g.wait(1).wait_status == 0);
    for (auto &node : g.nodes) node.stop_ranks();
    g.serve(2);
    for (std::uint32_t rank : {0u, 2u}) g.start(rank, "look up");
    for (std::uint32_t rank : {0u, 2u}) BOOST_TEST(g.wait(rank).wait_status == 0);
    g.start(1, "publish");
    BOOST_TEST(g.wait(1).wait_status == 0, "by the rank that does it again");
}

BOOST_AUTO_TEST_CASE(events_of_a_rank_reach_those_that_they_are_for) {
    Group g;
    for (const char *what : {"event", "event for one"}) {
        g.start_all(what);
        g.expect_success();
    }
}

BOOST_AUTO_TEST_CASE(ranks_hear_that_their_generation_ends) {
    Group g;
    for (std::uint32_t rank : {0u, 3u}) g.start(rank, "end");
    g.pass(500ms);
    for (auto &node : g.nodes) node.stop_ranks();
    for (std::uint32_t rank : {0u, 3u}) {
        auto ended = g.wait(rank);
        BOOST_TEST(ended.wait_status == 0, "rank " << rank << ": " << ended.output);
    }
}

/// libpmix writes a message at a time, and this process ends when the next generation begins.
BOOST_AUTO_TEST_CASE(what_ranks_are_told_at_the_end_reaches_them_before_the_next_generation) {
    Group g;
    for (std::uint32_t rank : {0u, 1u}) g.start(rank, "story");
    g.pass(500ms);
    for (std::uint64_t step = 1; step <= 100; ++step)
        g.nodes[0].say_event(local::PmixEventKind::StepSafe, step);
    g.nodes[0].stop_ranks();
    g.nodes[0].serve(2);
    for (std::uint32_t rank : {0u, 1u}) {
        auto ended = g.wait(rank);
        BOOST_TEST(ended.wait_status == 0, "rank " << rank << ": " << ended.output);
    }
}

BOOST_AUTO_TEST_CASE(ranks_may_ask_for_their_world) {
    Group g;
    g.start(2, "query");
    auto ended = g.wait(2);
    BOOST_TEST(ended.wait_status == 0, ended.output);
    g.start(0, "query namespace");
    ended = g.wait(0);
    BOOST_TEST(ended.wait_status == 0, ended.output);
    g.start(1, "query another");
    g.expect_failure(1, "query: not found\n");
    g.start(3, "query unknown");
    g.expect_failure(3, "query: not supported\n");
}

BOOST_AUTO_TEST_CASE(ranks_hear_of_losses_and_of_checkpoints) {
    using Kind = local::PmixEventKind;
    Group g;
    const char *what[] = {"rank lost", "node lost", "safe", "durable"};
    for (std::uint32_t rank : {0u, 1u, 2u, 3u}) g.start(rank, what[rank]);
    g.pass(500ms);
    for (auto &node : g.nodes) {
        node.say_event(Kind::StepSafe, 39, 2);  // of a generation that is not served
        node.say_event(Kind::None, 0);
        node.say_event(static_cast<Kind>(77), 0);
        node.say_event(Kind::RankLost, 4);
        node.say_event(Kind::NodeLost, 2);
        node.say_event(Kind::RankLost, 3);
        node.say_event(Kind::NodeLost, 1);
        node.say_event(Kind::StepSafe, 40);
        node.say_event(Kind::StepDurable, 30);
    }
    g.expect_success();
}

BOOST_AUTO_TEST_CASE(ranks_hear_that_the_jobs_time_is_nearly_over) {
    Group g;
    for (std::uint32_t rank : {0u, 1u}) g.start(rank, "draining");
    g.pass(500ms);
    g.nodes[0].say_event(local::PmixEventKind::Draining, 90);
    for (std::uint32_t rank : {0u, 1u}) {
        auto ended = g.wait(rank);
        BOOST_TEST(ended.wait_status == 0, ended.output);
    }
}

BOOST_AUTO_TEST_CASE(ranks_hear_of_losses_when_their_generation_has_ended_too) {
    Group g;
    g.start(1, "node lost");
    g.pass(500ms);
    g.nodes[0].stop_ranks();
    g.nodes[0].say_event(local::PmixEventKind::NodeLost, 1);
    auto ended = g.wait(1);
    BOOST_TEST(ended.wait_status == 0, ended.output);
}

BOOST_AUTO_TEST_CASE(ranks_may_ask_how_the_group_stands) {
    Group g;
    g.start(0, "query safe");
    g.expect_failure(0, "query: not found\n");
    g.nodes[0].safe_step = 40;
    g.start(0, "query state");
    auto ended = g.wait(0);
    BOOST_TEST(ended.wait_status == 0, ended.output);
    // Without a daemon there is an answer, too.
    g.nodes[0].stop_daemon();
    g.start(1, "query safe");
    g.expect_failure(1, "query: timeout\n");
}

BOOST_AUTO_TEST_CASE(ranks_may_ask_for_more_nodes_or_fewer) {
    Group g;
    g.start(0, "query refusal");
    g.expect_failure(0, "query: not found\n");
    g.start(0, "extend, and why not");
    auto refused = g.wait(0);
    BOOST_TEST(refused.wait_status == 0, refused.output);
    BOOST_TEST(refused.output == "allocate: out of resource\n");
    g.nodes[0].room = 2;
    // Another rank's success is none of this one's.
    const std::pair<std::uint32_t, const char *> granted[] = {{1, "extend"}, {1, "refused"}, {0, "extend"}};
    for (auto [rank, what] : granted) {
        g.start(rank, what);
        auto ended = g.wait(rank);
        BOOST_TEST(ended.wait_status == 0, what << ": " << ended.output);
    }
    g.start(1, "release");
    auto ended = g.wait(1);
    BOOST_TEST(ended.wait_status == 0, ended.output);
    g.start(0, "query refusal");
    g.expect_failure(0, "query: not found\n");
    std::vector<std::pair<std::uint32_t, std::uint32_t>> wanted{{2, 0}, {2, 0}, {2, 0}, {0, 1}};
    BOOST_TEST((g.nodes[0].scaled == wanted));
    BOOST_TEST(g.nodes[1].scaled.empty());
    g.start(3, "changed");
    g.pass(500ms);
    g.nodes[1].say_event(local::PmixEventKind::AllocationChanged, 5);
    ended = g.wait(3);
    BOOST_TEST(ended.wait_status == 0, ended.output);
}

BOOST_AUTO_TEST_CASE(ranks_may_ask_for_nodes_beside_the_groups_own) {
    Installation made(R"(echo "$*" >>words
case $1 in
new) echo answer running 58 n3,n4 ;;
status) echo answer waiting 58 Resources ;;
release) echo answer ended 58 ;;
esac)");
    Group g(made.pmixd());
    const std::pair<const char *, const char *> asked[] = {
        {"new with terms", "pmix.alloc.id=58\npmix.alloc.reqid=the tests\npmix.alloc.nlist=n3,n4\n"},
        {"new", "pmix.alloc.id=58\npmix.alloc.nlist=n3,n4\n"},
        {"status of 58", "pmix.query.alloc=waiting: Resources\n"},
        {"release 58", ""}};
    for (auto [what, answer] : asked) {
        g.start(0, what);
        auto ended = g.wait(0);
        BOOST_TEST(ended.wait_status == 0, what << ": " << ended.output);
        BOOST_TEST(ended.output == answer);
    }
    BOOST_TEST(made.said("words") ==
               "new 7 0 2 seconds=90 partition=long label=the tests\nnew 7 0 1\n"
               "status 7 58\nrelease 7 58\n");
    g.start(1, "status of none");
    g.expect_failure(1, "query: bad parameter\n");
}

BOOST_AUTO_TEST_CASE(a_refusal_of_slurms_is_told_with_its_words) {
    Installation made("echo answer refused $(cat how)");
    Group g(made.pmixd());
    const std::pair<const char *, const char *> refused[] = {
        {"argument", "refused"},     {"permission", "no permissions"},
        {"full", "out of resource"}, {"away", "busy"},
        {"late", "timeout"},         {"unknown", "not found"}};
    for (auto [how, status] : refused) {
        std::ofstream(made.folder / "how") << how << " nobody may";
        g.start(0, "new, and why not");
        g.expect_failure(0, "allocate: " + std::string(status) + "\nquery: dlrover.refusal=nobody may;\n");
    }
    std::ofstream(made.folder / "how") << "unknown it is not";
    g.start(1, "status of 58");
    g.expect_failure(1, "query: not found\n");
    g.start(1, "query refusal");
    g.expect_failure(1, "query: dlrover.refusal=it is not;\n");
}

BOOST_AUTO_TEST_CASE(without_what_asks_slurm_it_is_said) {
    Group g;
    g.start(0, "new, and why not");
    g.expect_failure(0, "allocate: not supported\nquery: dlrover.refusal=can not run ");
}

BOOST_AUTO_TEST_CASE(while_slurm_is_waited_for_ranks_are_served) {
    Installation made("echo $$ >pid; exec sleep 600");
    Group g(made.pmixd());
    auto begun = Clock::now();
    g.start(0, "new, and why not");
    g.start(1, "query");
    auto ended = g.wait(1);
    BOOST_TEST(ended.wait_status == 0, ended.output);
    BOOST_TEST((Clock::now() - begun < 9s));
    g.expect_failure(0, "allocate: timeout\nquery: dlrover.refusal=Slurm has not answered within 10.0 s;\n");
    BOOST_TEST((Clock::now() - begun < 20s));
    pid_t pid = std::stoi(made.said("pid"));
    for (auto end = Clock::now() + patience; ::kill(pid, 0) == 0 && Clock::now() < end;) ::usleep(10000);
    BOOST_TEST((::kill(pid, 0) < 0 && errno == ESRCH), "it is killed, and nobody has to wait for it");
}

/// What Slurm gives then would be nobody's.
BOOST_AUTO_TEST_CASE(an_allocation_for_a_rank_whose_generation_has_ended_is_released) {
    Installation made(R"(echo "$*" >>words
[ $1 = release ] || while [ ! -e go ]; do sleep 0.05; done
echo answer waiting 58)");
    Group g(made.pmixd());
    g.start(0, "new");
    g.pass(1s);
    g.nodes[0].stop_ranks();
    g.pass(200ms);
    std::ofstream(made.folder / "go") << "";
    auto ended = g.wait(0);
    BOOST_TEST(ended.output.find("allocate: lost connection") != std::string::npos, ended.output);
    g.pass(1s);
    BOOST_TEST(made.said("words") == "new 7 0 1\nrelease 7 58\n");
}

BOOST_AUTO_TEST_CASE(ranks_of_two_nodes_make_groups) {
    Group g;
    g.start_all("group");
    std::set<std::string> all, inner;
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
        auto ended = g.wait(rank);
        BOOST_TEST(ended.wait_status == 0, "rank " << rank << ": " << ended.output);
        auto end = ended.output.find('\n') + 1;
        all.insert(ended.output.substr(0, end));
        if (rank == 1 || rank == 2) inner.insert(ended.output.substr(end));
    }
    BOOST_TEST(all.size() == 1u);
    BOOST_REQUIRE(inner.size() == 1u);
    // "two N", and again, by another number.
    std::string twice = *inner.begin();
    auto half = twice.find('\n') + 1;
    BOOST_TEST(twice.substr(0, half) != twice.substr(half));
}

BOOST_AUTO_TEST_CASE(a_group_ends_with_the_generation) {
    Group g;
    for (std::uint32_t rank : {0u, 1u, 2u}) g.start(rank, "group");
    g.pass(700ms);
    for (auto &node : g.nodes) node.stop_ranks();
    for (std::uint32_t rank : {0u, 1u}) g.expect_failure(rank, "construct: lost connection\n");
    ::kill(g.ranks[2], SIGKILL);
    (void)g.wait(2);
    g.serve(2);
    g.start_all("group");
    g.expect_success();
}

BOOST_AUTO_TEST_CASE(a_group_waits_no_longer_than_it_may) {
    Group g;
    for (std::uint32_t rank : {0u, 1u}) g.start(rank, "group in a second");
    for (std::uint32_t rank : {0u, 1u}) g.expect_failure(rank, "construct: timeout\n");
}

/// The other rank of its node does not come, and from that libpmix 4.2.2's own timer never comes back, or its
/// server ends: either way the rank is not left waiting.
BOOST_AUTO_TEST_CASE(no_rank_waits_for_a_server_whose_pmix_is_stuck) {
    Group g;
    g.start(0, "group in a second");
    int status = 0;
    for (auto end = Clock::now() + patience; ::waitpid(g.ranks[0], &status, WNOHANG) == 0; ::usleep(1000))
        BOOST_REQUIRE_MESSAGE(Clock::now() < end, "rank 0 does not end");
    g.ranks.erase(0);
    BOOST_TEST(WEXITSTATUS(status) == 1);
}

BOOST_AUTO_TEST_CASE(a_rank_may_have_all_save) {
    Group g;
    g.start_all("checkpoint");
    g.expect_success();
}

BOOST_AUTO_TEST_CASE(a_rank_may_have_all_begin_again) {
    Group g;
    g.start(2, "restart");
    auto ended = g.wait(2);
    BOOST_TEST(ended.wait_status == 0, ended.output);
    const std::pair<const char *, const char *> refused[] = {
        {"restart newest", "not supported"}, {"restart never", "bad parameter"}, {"kill", "not supported"}};
    for (auto [what, why] : refused) {
        g.start(3, what);
        g.expect_failure(3, std::string("control: ") + why + "\n");
    }
    BOOST_TEST(g.nodes[1].restarts == (std::vector<std::int64_t>{30, -1}));
}

BOOST_AUTO_TEST_CASE(what_is_published_has_bounds) {
    Group g;
    g.start(3, "publish too much");
    g.expect_failure(3, "publish: out of resource\n");
}

BOOST_AUTO_TEST_CASE(a_daemon_that_comes_back_finds_what_was) {
    Group g;
    for (std::uint32_t rank : {0u, 1u}) g.start(rank, "collect");
    g.pass(500ms);
    auto variables = g.nodes[1].ready.variables;
    g.nodes[1].stop_daemon();
    g.nodes[1].greet();
    BOOST_REQUIRE(g.nodes[1].hello.serving != nullptr);
    BOOST_TEST(g.nodes[1].hello.serving->number() == 1u);
    g.nodes[1].serve(1);
    BOOST_TEST(g.nodes[1].ready.variables == variables);
    for (std::uint32_t rank : {2u, 3u}) g.start(rank, "collect");
    g.expect_success();
}

BOOST_AUTO_TEST_CASE(parcels_that_are_lost_come_again) {
    Group g;
    g.nodes[0].cut = g.nodes[1].cut = true;
    g.start_all("collect");
    g.pass(1s);
    g.nodes[0].cut = g.nodes[1].cut = false;
    g.expect_success();
}

BOOST_AUTO_TEST_CASE(a_world_that_can_not_be_is_answered) {
    PmixdNode node(0);
    node.begin();
    local::PmixWorldT world;
    world.generation = std::make_unique<proto::Generation>(1, 1);
    world.name_space = "x";
    world.node_names = {"n0"};
    world.ranks_per_node = {0};
    node.push(proto::make_local(0, std::move(world)));
    auto ready = *node.wait_for(local::Body::PmixReady).body.AsPmixReady();
    BOOST_TEST(!ready.ok);
    BOOST_TEST(!ready.text.empty());
}
