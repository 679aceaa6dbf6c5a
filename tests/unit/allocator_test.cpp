// SPDX-License-Identifier: Apache-2.0
// Against programs that answer, and others.
#include "pmix_server/allocator.h"

#include <signal.h>
#include <sys/wait.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>

#include "poll_loop.h"

using namespace dlrover;
using namespace dlrover::pmix;
using namespace std::chrono_literals;
using Stage = proto::AllocationState::Stage;

namespace {

struct Fixture {
    std::filesystem::path folder;
    test::PollLoop loop;
    std::optional<Allocator> allocator;
    std::vector<Result<proto::AllocationState>> answers;

    Fixture() {
        char name[] = "/tmp/dlrover-test-XXXXXX";
        folder = ::mkdtemp(name);
    }
    ~Fixture() {
        while (::waitpid(-1, nullptr, WNOHANG) > 0) {
        }
        std::filesystem::remove_all(folder);
    }
    /// A shell's script.
    void use(const std::string &script, std::chrono::milliseconds limit = 30s) {
        auto file = folder / "program";
        std::ofstream(file) << "#!/bin/sh\ncd " << folder.string() << "\n" << script << "\n";
        std::filesystem::permissions(file, std::filesystem::perms::owner_all);
        allocator.emplace(loop, Allocator::Program{file, {"PATH=/usr/bin:/bin", "TZ=here"}, limit});
    }
    void ask(std::uint32_t nodes = 1) {
        proto::AllocationOrder order;
        order.job = JobId(57);
        order.nodes = nodes;
        order.label = "a b; echo c";
        allocator->ask(order, [this](auto answer) { answers.push_back(std::move(answer)); });
    }
    Result<proto::AllocationState> answer() {
        std::size_t before = answers.size();
        ask();
        BOOST_REQUIRE(loop.run_until([&] { return answers.size() > before; }, 40s));
        auto last = std::move(answers.back());
        answers.pop_back();
        return last;
    }
    std::string text_of(const char *name) const {
        std::ifstream file(folder / name);
        return {std::istreambuf_iterator<char>(file), {}};
    }
    bool ends_within(std::chrono::milliseconds time) {
        return loop.run_until([] { return ::waitpid(-1, nullptr, WNOHANG) > 0; }, time);
    }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(allocators, Fixture)

BOOST_AUTO_TEST_CASE(a_program_is_told_and_answers) {
    use("for word; do echo \"$word\"; done > words; env > variables\n"
        "echo slurm: a word of warning >&2; echo answer running 58 n3,n4");
    auto said = answer();
    BOOST_REQUIRE(said.ok());
    BOOST_TEST((said->stage == Stage::running && said->job == JobId(58) && said->words == "n3,n4"));
    BOOST_TEST(text_of("words") == "new\n57\n0\n1\nlabel=a b; echo c\n");
    BOOST_TEST(text_of("variables").find("TZ=here") != std::string::npos);
    BOOST_TEST(text_of("variables").find("HOME=") == std::string::npos);
}

BOOST_AUTO_TEST_CASE(an_answer_is_enough_and_ends_the_program) {
    use("echo answer ended 58; exec sleep 60");
    BOOST_TEST(answer().ok());
    BOOST_TEST(ends_within(10s));
}

BOOST_AUTO_TEST_CASE(a_refusal_is_told) {
    use("echo answer refused away slurmctld does not answer");
    auto said = answer();
    BOOST_TEST((said.status().code() == Code::unavailable));
    BOOST_TEST(said.status().message() == "slurmctld does not answer");
}

BOOST_AUTO_TEST_CASE(a_program_that_hangs_is_killed) {
    use("echo one moment; exec sleep 60", 300ms);
    auto said = answer();
    BOOST_TEST((said.status().code() == Code::timeout));
    BOOST_TEST(said.status().message() == "Slurm has not answered within 300 ms");
    BOOST_TEST(ends_within(10s));
}

BOOST_AUTO_TEST_CASE(a_program_that_dies_says_why) {
    use("echo 'libslurm.so.38: cannot open shared object file' >&2; exit 127");
    auto said = answer();
    BOOST_TEST((said.status().code() == Code::corrupt));
    BOOST_TEST(said.status().message() ==
               "dlrover-allocate ends without an answer: libslurm.so.38: cannot open shared object file");
    use("kill -KILL $$");
    BOOST_TEST((answer().status().code() == Code::corrupt));
    use("echo answer given to everybody");
    BOOST_TEST((answer().status().code() == Code::corrupt));
}

BOOST_AUTO_TEST_CASE(a_program_that_never_stops_talking_is_killed) {
    use("exec yes");
    auto said = answer();
    BOOST_TEST((said.status().code() == Code::corrupt));
    BOOST_TEST(said.status().message() == "dlrover-allocate says too much");
    BOOST_TEST(ends_within(10s));
}

BOOST_AUTO_TEST_CASE(a_program_that_is_not_there_is_named) {
    allocator.emplace(loop, Allocator::Program{folder / "nothing", {}});
    auto said = answer();
    BOOST_TEST((said.status().code() == Code::unsupported));
    BOOST_TEST(said.status().message() ==
               "can not run " + (folder / "nothing").string() + ": No such file or directory");
}

BOOST_AUTO_TEST_CASE(few_run_at_once_and_the_others_wait) {
    use("echo > began-$4; while [ -e program ] && [ ! -e go-$4 ]; do sleep 0.05; done; echo answer ended $4");
    for (std::uint32_t i = 1; i <= 6; ++i) ask(i);
    auto began = [&](int i) { return std::filesystem::exists(folder / ("began-" + std::to_string(i))); };
    BOOST_REQUIRE(loop.run_until([&] { return began(1) && began(2) && began(3) && began(4); }, 30s));
    loop.run_for(200ms);
    BOOST_TEST((!began(5) && !began(6) && answers.empty()));
    std::ofstream(folder / "go-3") << "\n";
    BOOST_REQUIRE(loop.run_until([&] { return began(5); }, 30s));
    BOOST_TEST((!began(6) && answers.size() == 1u));
    BOOST_TEST((answers[0].ok() && answers[0]->job == JobId(3)));
}

BOOST_AUTO_TEST_CASE(those_that_wait_have_their_own_deadline_and_a_bound) {
    use("exec sleep 60", 500ms);
    for (std::size_t i = 0; i < Allocator::most_orders; ++i) ask();
    BOOST_TEST(answers.empty());
    ask();
    BOOST_REQUIRE(answers.size() == 1u);
    BOOST_TEST((answers[0].status().code() == Code::resource_exhausted));
    BOOST_TEST(loop.run_until([&] { return answers.size() == Allocator::most_orders + 1; }, 20s));
}

BOOST_AUTO_TEST_CASE(the_environment_is_what_libslurm_looks_at) {
    auto kept = allocate_environment({"HOME=/root", "SLURM_CONF=/etc/s.conf", "SLURM_CONFX=1",
                                      "LD_PRELOAD=x.so", "TZ=UTC", "PMIX_MCA_gds=hash"});
    BOOST_TEST((kept == std::vector<std::string>{"SLURM_CONF=/etc/s.conf", "TZ=UTC"}));
}

BOOST_AUTO_TEST_SUITE_END()
