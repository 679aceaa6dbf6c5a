// SPDX-License-Identifier: Apache-2.0
// dlrover-writer: puts a node's checkpoints on storage. Started by the agent's guard.
#include <unistd.h>

#include <cstdlib>

#include "helper/process.h"
#include "helper/program.h"
#include "writer/service.h"

using namespace dlrover;
using namespace dlrover::writer;

namespace {

constexpr helper::Program program{
    "dlrover-writer",
    "Puts the checkpoints of an elastic step's ranks on this node into --dlrover-ckpt-dir."};

std::string node_name() {
    if (const char *name = std::getenv("SLURMD_NODENAME"); name != nullptr && *name != '\0') return name;
    char name[256] = "";
    ::gethostname(name, sizeof name - 1);
    return name;
}

}  // namespace

int main(int argc, char **argv) {
    if (auto code = helper::take_arguments(program, argc, argv)) return *code;
    auto environment = read_environment();
    if (!environment) return helper::fail(program, environment.status(), 2);
    if (Status status = helper::settle_in(helper::Pace::behind); !status.ok())
        return helper::fail(program, status, 1);
    auto outbox = Outbox::create();
    if (!outbox) return helper::fail(program, outbox.status(), 1);
    // The threads stay in the service for as long as the process lives.
    auto &service = *new Service(*environment, std::move(*outbox), node_name());
    service.run();
}
