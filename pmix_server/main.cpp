// SPDX-License-Identifier: Apache-2.0
// dlrover-pmixd: the PMIx server of an elastic step's ranks on this node. Started by the agent's guard.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "base/unique_fd.h"
#include "base/units.h"
#include "common/asio_loop.h"
#include "helper/process.h"
#include "helper/program.h"
#include "pmix_server/service.h"

using namespace dlrover;

namespace {

constexpr helper::Program program{"dlrover-pmixd", "Serves PMIx to an elastic step's ranks on this node."};
constexpr const char *without_munge = "DLROVER_PMIX_NATIVE";
constexpr const char *board_variable = "DLROVER_PMIX_BOARD";  ///< the descriptor of a file

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

/// In a process PMIx can be started once.
[[noreturn]] void start_again(char **argv, std::vector<std::string> environment) {
    std::vector<char *> words;
    for (std::string &variable : environment) words.push_back(variable.data());
    words.push_back(nullptr);
    ::execve("/proc/self/exe", argv, words.data());
    std::exit(helper::fail(program, Status::from_errno("execve"), 1));
}

/// Everything but what the next process gets: PMIx's connections end with this one.
void close_on_exec(int but) {
    std::error_code error;
    for (const auto &entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
        auto number = parse_uint(entry.path().filename().string(), 3, INT_MAX);
        if (number && static_cast<int>(*number) != but)
            ::fcntl(static_cast<int>(*number), F_SETFD, FD_CLOEXEC);
    }
}

/// A file that the next process finds open.
Result<int> hand_on(const proto::Bytes &bytes) {
    UniqueFd file(::memfd_create("dlrover-board", 0));
    if (!file) return Status::from_errno("memfd_create");
    if (::write(file.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
        return Status(Code::resource_exhausted, "what is published can not be handed on");
    close_on_exec(file.get());
    return file.release();
}

/// Others of the group have it, too: where it is not to be had this node begins without.
pmix::Board board_from_before() {
    std::string text = helper::variable(board_variable);
    auto number = parse_uint(text, 3, INT_MAX);
    if (!number) return {};
    UniqueFd file(static_cast<int>(*number));
    struct stat st {};
    constexpr off_t most = off_t{8} << 20;
    if (::fstat(file.get(), &st) != 0 || st.st_size > most) return {};
    proto::Bytes bytes(static_cast<std::size_t>(st.st_size));
    if (::pread(file.get(), bytes.data(), bytes.size(), 0) != st.st_size) return {};
    auto board = pmix::decode_board(bytes);
    return board ? std::move(*board) : pmix::Board();
}

/// For the guard's word that the agent has ended. Before there are other threads.
Result<UniqueFd> catch_farewell() {
    sigset_t farewell;
    ::sigemptyset(&farewell);
    ::sigaddset(&farewell, SIGUSR2);
    ::sigprocmask(SIG_BLOCK, &farewell, nullptr);
    ::signal(SIGUSR2, SIG_DFL);  // what is ignored is not told
    UniqueFd fd(::signalfd(-1, &farewell, SFD_CLOEXEC | SFD_NONBLOCK));
    return fd ? Result<UniqueFd>(std::move(fd)) : Status::from_errno("signalfd");
}

/// Comes back only where it can not begin.
Status serve(const helper::Environment &environment, const std::string &folder, pmix::Security security,
             pmix::Allocator::Program slurm, pmix::Board board, pmix::Service::Renew renew) {
    ::signal(SIGCHLD, SIG_IGN);  // the processes that ask Slurm are nobody's to wait for
    // They are PMIx's too, whose threads never end.
    auto &loop = *new AsioLoop();
    auto farewell = catch_farewell();
    if (!farewell) return farewell.take_status();
    auto &service =
        *new pmix::Service(loop, environment, std::move(slurm), std::move(board), std::move(renew));
    auto module = pmix::make_server_module(loop, service);
    DLROVER_TRY(pmix::Server::start(folder, security, module));
    service.begin();
    auto told = loop.when_readable(farewell->get(), [&service, fd = farewell->get()] {
        signalfd_siginfo word;
        if (::read(fd, &word, sizeof word) > 0) service.end_with_clients();
    });
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
    auto board = board_from_before();
    auto before = environment_now();
    std::erase_if(before, [](const std::string &word) { return word.starts_with(board_variable); });
    if (Status s = helper::settle_in(helper::Pace::as_ranks); !s.ok()) return helper::fail(program, s, 1);
    if (Status s = clear_environment(*place); !s.ok()) return helper::fail(program, s, 1);
    auto folder = make_folder(*place);
    if (!folder) return helper::fail(program, folder.status(), 1);
    auto renew = [&](const pmix::Board &published) {
        auto file = hand_on(pmix::encode_board(published, true));
        if (!file) std::exit(helper::fail(program, file.status(), 1));
        auto next = before;
        next.push_back(std::string(board_variable) + "=" + std::to_string(*file));
        start_again(argv, std::move(next));
    };
    pmix::Allocator::Program slurm{pmix::allocate_program(), pmix::allocate_environment(before)};
    Status why = serve(*environment, *folder, security, std::move(slurm), std::move(board), renew);
    if (security != pmix::Security::munge) return helper::fail(program, why, 1);
    // This one's has no use of MUNGE.
    before.push_back(std::string(without_munge) + "=1");
    start_again(argv, std::move(before));
}
