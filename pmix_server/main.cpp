// SPDX-License-Identifier: Apache-2.0
// dlrover-pmixd: the PMIx server of an elastic step's ranks on this node. Started by the agent's guard.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "common/asio_loop.h"
#include "helper/process.h"
#include "helper/program.h"
#include "pmix_server/service.h"

using namespace dlrover;

namespace {

constexpr helper::Program program{"dlrover-pmixd", "Serves PMIx to an elastic step's ranks on this node."};
constexpr const char *without_munge = "DLROVER_PMIX_NATIVE";

struct Place {
    std::string scratch;  ///< whoever gave it to us removes it in the end
    std::string node;     ///< as it stands in worlds
};

Result<Place> read_place() {
    Place place{helper::variable("DLROVER_SCRATCH"), helper::variable("SLURMD_NODENAME")};
    if (place.scratch.empty()) return Status(Code::not_found, "DLROVER_SCRATCH is not set");
    return place;
}

/// PMIx reads its settings from the environment, and what the user has set there is for his programs.
Status clear_environment(const Place &place) {
    if (::clearenv() != 0) return Status(Code::internal, "the environment can not be cleared");
    if (place.node.empty() || ::setenv("PMIX_HOSTNAME", place.node.c_str(), 1) == 0) return {};
    return Status::from_errno("setenv");
}

/// Empty, and nobody else's.
Result<std::string> make_folder(const Place &place) {
    std::string folder = place.scratch + "/pmix";
    std::error_code error;
    std::filesystem::remove_all(folder, error);  // of one that was killed
    if (::mkdir(folder.c_str(), 0700) != 0) return Status::from_errno("mkdir " + folder);
    return folder;
}

std::vector<std::string> environment_now() {
    std::vector<std::string> all;
    for (char **variable = environ; *variable != nullptr; ++variable) all.emplace_back(*variable);
    return all;
}

/// In a process PMIx can be started once, and this one's has no use of MUNGE.
[[noreturn]] void start_again(char **argv, std::vector<std::string> environment, const Status &why) {
    environment.push_back(std::string(without_munge) + "=1");
    std::vector<char *> words;
    for (std::string &variable : environment) words.push_back(variable.data());
    words.push_back(nullptr);
    ::execve("/proc/self/exe", argv, words.data());
    std::exit(helper::fail(program, why, 1));
}

/// Comes back only where it can not begin.
Status serve(const helper::Environment &environment, const std::string &folder, pmix::Security security) {
    // They are PMIx's too, whose threads never end.
    auto &loop = *new AsioLoop();
    auto &service = *new pmix::Service(loop, environment);
    auto module = pmix::make_server_module(loop, service);
    DLROVER_TRY(pmix::Server::start(folder, security, module));
    service.begin();
    loop.run();
    return Status(Code::internal, "the loop has ended");
}

}  // namespace

int main(int argc, char **argv) {
    if (auto code = helper::take_arguments(program, argc, argv)) return *code;
    auto environment = helper::read_environment();
    if (!environment) return helper::fail(program, environment.status(), 2);
    auto place = read_place();
    if (!place) return helper::fail(program, place.status(), 2);
    bool native = !helper::variable(without_munge).empty();
    auto security = native ? pmix::Security::native : pmix::best_security();
    auto before = environment_now();
    if (Status s = helper::settle_in(helper::Pace::as_ranks); !s.ok()) return helper::fail(program, s, 1);
    if (Status s = clear_environment(*place); !s.ok()) return helper::fail(program, s, 1);
    auto folder = make_folder(*place);
    if (!folder) return helper::fail(program, folder.status(), 1);
    Status why = serve(*environment, *folder, security);
    if (security == pmix::Security::munge) start_again(argv, std::move(before), why);
    return helper::fail(program, why, 1);
}
