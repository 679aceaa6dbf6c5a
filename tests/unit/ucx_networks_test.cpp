// SPDX-License-Identifier: Apache-2.0
// Which networks UCX may use. A program of its own: a process decides it once.
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "transport/bulk_ucx.h"

using namespace dlrover::transport;
namespace fs = std::filesystem;

namespace {

/// Of this process: how many of its sockets listen on TCP.
std::size_t tcp_listeners() {
    std::set<std::string> mine;
    std::error_code error;
    for (const auto &entry : fs::directory_iterator("/proc/self/fd"))
        mine.insert(fs::read_symlink(entry.path(), error).string());
    std::size_t count = 0;
    for (const char *name : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
        std::ifstream file(name);
        std::string line, word;
        for (std::getline(file, line); std::getline(file, line);) {
            std::vector<std::string> words;
            for (std::istringstream in(line); in >> word;) words.push_back(word);
            bool listens = words.size() > 9 && words[3] == "0A";
            count += listens && mine.contains("socket:[" + words[9] + "]");
        }
    }
    return count;
}

struct Outcome {
    bool opened = false;
    bool listens = false;
};

/// In a process of its own. The user's environment wants TCP.
Outcome open_sink(UcxNetworks networks) {
    pid_t pid = ::fork();
    BOOST_REQUIRE(pid >= 0);
    if (pid == 0) {
        ::setenv("UCX_TLS", "tcp", 1);
        ucx_tune();
        ucx_allow(networks);
        std::vector<std::byte> memory(1 << 16);
        auto sink = UcxSink::open(memory);
        ::_exit((sink.ok() ? 1 : 0) + (tcp_listeners() > 0 ? 2 : 0));
    }
    int status = 0;
    BOOST_REQUIRE(::waitpid(pid, &status, 0) == pid);
    BOOST_REQUIRE(WIFEXITED(status));
    return {(WEXITSTATUS(status) & 1) != 0, (WEXITSTATUS(status) & 2) != 0};
}

/// As the kernel lists RDMA devices.
class Devices {
  public:
    Devices() {
        char name[] = "/tmp/dlrover-test-XXXXXX";
        top = ::mkdtemp(name);
    }
    ~Devices() { fs::remove_all(top); }
    void add(const std::string &device, const std::string &state) const {
        fs::path port = fs::path(top) / device / "ports" / "1";
        fs::create_directories(port);
        std::ofstream(port / "state") << state << "\n";
    }
    std::string top;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(ucx_networks)

BOOST_AUTO_TEST_CASE(rdma_is_there_when_a_port_is_active) {
    Devices devices;
    BOOST_TEST(!rdma_present(devices.top + "/none"));
    BOOST_TEST(!rdma_present(devices.top));
    devices.add("mlx5_0", "1: DOWN");
    devices.add("mlx5_1", "2: INIT");
    BOOST_TEST(!rdma_present(devices.top));
    devices.add("mlx5_2", "4: ACTIVE");
    BOOST_TEST(rdma_present(devices.top));
}

BOOST_AUTO_TEST_CASE(rdma_alone_listens_on_no_tcp) {
    Outcome rdma = open_sink(UcxNetworks::rdma);
    BOOST_TEST(!rdma.listens);
    if (!rdma_present()) BOOST_TEST(!rdma.opened);
}

/// Or the one above could not fail.
BOOST_AUTO_TEST_CASE(any_network_does) {
    Outcome any = open_sink(UcxNetworks::any);
    if (any.opened) BOOST_TEST(any.listens);
}

BOOST_AUTO_TEST_SUITE_END()
