// SPDX-License-Identifier: Apache-2.0
// dlrover-writer: puts a node's checkpoints on storage. Started by the agent's guard.
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "config.h"
#include "helper/process.h"
#include "writer/service.h"

using namespace dlrover;
using namespace dlrover::writer;

namespace {

constexpr char usage_text[] =
    "usage: dlrover-writer [--help | --version]\n"
    "Puts the checkpoints of an elastic step's ranks on this node into --dlrover-ckpt-dir. Not started by "
    "hand:\n"
    "the agent of the step's first task on a node does it.\n";

int fail(const Status &status, int code) {
    std::fprintf(stderr, "dlrover-writer: %s\n", status.message().c_str());
    return code;
}

std::string node_name() {
    if (const char *name = std::getenv("SLURMD_NODENAME"); name != nullptr && *name != '\0') return name;
    char name[256] = "";
    ::gethostname(name, sizeof name - 1);
    return name;
}

}  // namespace

int main(int argc, char **argv) {
    if (argc == 2 && std::strcmp(argv[1], "--help") == 0) return std::fputs(usage_text, stdout) < 0;
    if (argc == 2 && std::strcmp(argv[1], "--version") == 0)
        return std::puts(PACKAGE_NAME " " PACKAGE_VERSION) < 0;
    if (argc != 1) return std::fputs(usage_text, stderr) < 0 ? 1 : 2;
    auto environment = read_environment();
    if (!environment) return fail(environment.status(), 2);
    if (Status status = helper::settle_in(); !status.ok()) return fail(status, 1);
    auto outbox = Outbox::create();
    if (!outbox) return fail(outbox.status(), 1);
    // The threads stay in the service for as long as the process lives.
    auto &service = *new Service(*environment, std::move(*outbox), node_name());
    service.run();
}
