// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "daemon/keeper.h"

namespace {

int usage(std::FILE *to, int status) {
    std::fputs(
        "usage: dlrover-keeper [--daemon PATH] [--] [ARGUMENT...]\n"
        "Starts the daemon with these arguments, starts it again when it dies, keeps its records.\n",
        to);
    return status;
}

}  // namespace

int main(int argc, char **argv) {
    std::vector<std::string> command{DLROVER_SBINDIR "/dlroverd"};
    int i = 1;
    if (i < argc && std::strcmp(argv[i], "--help") == 0) return usage(stdout, 0);
    if (i < argc && std::strcmp(argv[i], "--daemon") == 0) {
        if (i + 1 == argc) return usage(stderr, 2);
        command[0] = argv[i + 1];
        i += 2;
    }
    if (i < argc && std::strcmp(argv[i], "--") == 0) ++i;
    for (; i < argc; ++i) command.emplace_back(argv[i]);
    if (::access(command[0].c_str(), X_OK) != 0) {
        std::fprintf(stderr, "dlrover-keeper: cannot execute %s: %s\n", command[0].c_str(),
                     std::strerror(errno));
        return 1;
    }
    return dlrover::daemon::Keeper(std::move(command)).run();
}
