// SPDX-License-Identifier: Apache-2.0
#include "base/fault.h"

#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

using namespace dlrover;
namespace fs = std::filesystem;

namespace {

/// Where an order may lie; named by the environment.
struct OrderFile {
    OrderFile() {
        std::string made = (fs::temp_directory_path() / "fault-test-XXXXXX").string();
        BOOST_REQUIRE(::mkdtemp(made.data()) != nullptr);
        folder = made;
        ::setenv("DLROVER_FAULT_ORDER", path().c_str(), 1);
    }
    ~OrderFile() {
        ::unsetenv("DLROVER_FAULT_ORDER");
        fs::remove_all(folder);
    }
    fs::path path() const { return folder / "order"; }
    void give(const std::string &text) const { std::ofstream(path()) << text; }
    fs::path taken_by(pid_t pid) const {
        return folder / ("order." + host_name() + "." + std::to_string(pid));
    }
    static std::string host_name() {
        char name[256] = "";
        ::gethostname(name, sizeof name - 1);
        return name;
    }

    fs::path folder;
};

struct Death {
    pid_t pid;
    int signal;  ///< 0: it has passed the point and lives
};

Death pass(const char *point) {
    pid_t child = ::fork();
    if (child == 0) {
        fault_point(point);
        ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return {child, WIFSIGNALED(status) ? WTERMSIG(status) : 0};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(fault)

BOOST_AUTO_TEST_CASE(one_process_dies_of_an_order) {
    OrderFile order;
    BOOST_TEST(pass("here").signal == 0);
    for (std::string text : {std::string("here"), std::string("here\n"), "here " + order.host_name()}) {
        order.give(text);
        BOOST_TEST(pass("her").signal == 0);
        BOOST_TEST(pass("here_too").signal == 0);
        Death death = pass("here");
        BOOST_TEST(death.signal == SIGKILL);
        BOOST_TEST(fs::exists(order.taken_by(death.pid)));
        BOOST_TEST(!fs::exists(order.path()));
        BOOST_TEST(pass("here").signal == 0);
    }
}

BOOST_AUTO_TEST_CASE(an_order_for_another_host_is_left_to_it) {
    OrderFile order;
    order.give("here " + order.host_name() + "x");
    BOOST_TEST(pass("here").signal == 0);
    BOOST_TEST(fs::exists(order.path()));
}

BOOST_AUTO_TEST_CASE(errno_is_as_it_was) {
    OrderFile order;
    errno = EDOM;
    fault_point("here");
    BOOST_TEST(errno == EDOM);
}

BOOST_AUTO_TEST_SUITE_END()
