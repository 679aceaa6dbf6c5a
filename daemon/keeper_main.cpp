// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "daemon/keeper.h"

#ifdef HAVE_CONFIG_H
#include "config.h"
#endif

namespace {

int usage(std::FILE *to, int status) {
    std::fputs(
        "usage: dlrover-keeper [--daemon PATH] [--] [ARGUMENT...]\n"
        "       dlrover-keeper --help | --version\n"
        "Starts the daemon with these arguments, starts it again when it dies, keeps its records.\n",
        to);
    return status;
}

}  // namespace

int main(int argc, char **argv) {
    std::vector<std::string> command{DLROVER_SBINDIR "/dlroverd"};
    int i = 1;
    auto at = [&](const char *word) { return i < argc && std::strcmp(argv[i], word) == 0; };
    if (at("--help") || at("-h")) return usage(stdout, 0);
    if (at("--version")) return std::puts("dlrover-keeper " PACKAGE_VERSION), 0;
    if (at("--daemon")) {
        if (i + 1 == argc) return usage(stderr, 2);
        command[0] = argv[i + 1];
        i += 2;
    }
    if (at("--")) ++i;
    for (; i < argc; ++i) command.emplace_back(argv[i]);
    if (::access(command[0].c_str(), X_OK) != 0) {
        std::fprintf(stderr, "dlrover-keeper: cannot execute %s: %s\n", command[0].c_str(),
                     std::strerror(errno));
        return 1;
    }
    return dlrover::daemon::Keeper(std::move(command)).run();
}
