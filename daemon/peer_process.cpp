// SPDX-License-Identifier: Apache-2.0
#include "daemon/peer_process.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <sstream>
#include <string>

namespace dlrover::daemon {
namespace {

constexpr int so_peerpidfd = 77;  // Linux 6.5; the headers may be older

UniqueFd handle_by_socket(int socket) {
    int fd = -1;
    socklen_t size = sizeof fd;
    return UniqueFd(::getsockopt(socket, SOL_SOCKET, so_peerpidfd, &fd, &size) == 0 ? fd : -1);
}

UniqueFd handle_by_number(pid_t pid) {
    return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

/// A number that was used again could be anybody's. The folder's owner does not say: helpers hide from their
/// user's other processes.
bool is_process_of(pid_t pid, uid_t uid) {
    std::ifstream status("/proc/" + std::to_string(pid) + "/status");
    // Line by line: the first one has a name in it that the process may choose.
    for (std::string line; std::getline(status, line);)
        if (line.starts_with("Uid:")) {
            uid_t real = 0;
            return static_cast<bool>(std::istringstream(line.substr(4)) >> real) && real == uid;
        }
    return false;
}

struct State {
    char letter = 0;  ///< of proc(5)'s stat; 0: not known
    pid_t parent = 0;
};

State state_of(pid_t pid) {
    std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
    std::string text;
    std::getline(file, text);
    auto behind_name = text.rfind(')');  // the process may choose the name
    State state;
    if (behind_name != std::string::npos)
        std::istringstream(text.substr(behind_name + 1)) >> state.letter >> state.parent;
    return state;
}

}  // namespace

std::shared_ptr<PeerProcess> PeerProcess::of(int socket, pid_t pid, uid_t uid) {
    UniqueFd handle = handle_by_socket(socket);
    if (!handle) {
        if (pid <= 1) return nullptr;
        handle = handle_by_number(pid);
        // The handle came first: whom it means does not change any more.
        if (!is_process_of(pid, uid)) return nullptr;
    }
    return std::shared_ptr<PeerProcess>(new PeerProcess(std::move(handle), pid, uid));
}

bool PeerProcess::is_suspended() const {
    State own = pid_ > 1 ? state_of(pid_) : State();
    return own.letter == 'T' && own.parent > 1 && state_of(own.parent).letter == 'T';
}

bool PeerProcess::kill() {
    // It may have become another user's since, by a program of theirs that it has started.
    if (pid_ > 1 && !is_process_of(pid_, uid_)) return false;
    if (handle_) return ::syscall(SYS_pidfd_send_signal, handle_.get(), SIGKILL, nullptr, 0) == 0;
    return pid_ > 1 && ::kill(pid_, SIGKILL) == 0;
}

}  // namespace dlrover::daemon
