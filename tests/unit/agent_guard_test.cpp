// SPDX-License-Identifier: Apache-2.0
#include "agent/guard.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>

using namespace dlrover;
using namespace dlrover::agent;
namespace fs = std::filesystem;

namespace {

/// Programs that put their process ids, one a line, into a file beside them, with what `MARK` says, and stay.
struct Helpers {
    Helpers() {
        char name[] = "/tmp/dlrover-guard-XXXXXX";
        dir = ::mkdtemp(name);
    }
    ~Helpers() { fs::remove_all(dir); }
    std::string add(const std::string &name) const {
        std::string path = dir + "/" + name;
        std::ofstream(path) << "#!/bin/sh\necho \"$$ $MARK\" >> \"$0.pids\"\nexec /bin/sleep 1000\n";
        fs::permissions(path, fs::perms::owner_all);
        return path;
    }
    std::vector<std::pair<pid_t, std::string>> started(const std::string &name) const {
        std::vector<std::pair<pid_t, std::string>> lines;
        std::ifstream file(dir + "/" + name + ".pids");
        pid_t pid = 0;
        for (std::string mark; file >> pid >> mark;) lines.emplace_back(pid, mark);
        return lines;
    }
    /// False: not in a minute.
    bool await(const std::string &name, std::size_t times) const {
        for (int i = 0; i < 6000 && started(name).size() < times; ++i) ::usleep(10000);
        return started(name).size() == times;
    }
    std::string dir;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(guard)

BOOST_AUTO_TEST_CASE(helpers_run_beside_the_agent_come_back_and_end_with_it) {
    Helpers helpers;
    GuardConfig config;
    config.watch_parent = false;
    config.helpers = {helpers.add("first"), helpers.add("second"), helpers.dir + "/missing"};
    config.helper_environment = {"MARK=here"};
    pid_t guard = ::fork();
    if (guard == 0)
        ::_exit(run_guarded(config, prepare_signals(), [&](const GuardedContext &) {
            if (!helpers.await("first", 1) || !helpers.await("second", 1)) return 1;
            ::kill(helpers.started("second")[0].first, SIGKILL);
            if (!helpers.await("second", 2)) return 2;
            ::kill(helpers.started("first")[0].first, SIGKILL);
            return helpers.await("first", 2) ? 7 : 3;
        }));
    int status = 0;
    BOOST_REQUIRE(::waitpid(guard, &status, 0) == guard);
    BOOST_TEST(WIFEXITED(status));
    BOOST_TEST(WEXITSTATUS(status) == 7);
    for (const char *name : {"first", "second"}) {
        auto started = helpers.started(name);
        BOOST_TEST(started.size() == 2u);
        for (const auto &[pid, mark] : started) {
            BOOST_TEST(mark == "here");
            BOOST_TEST(::kill(pid, 0) != 0);  // all are gone
        }
    }
}

BOOST_AUTO_TEST_SUITE_END()
