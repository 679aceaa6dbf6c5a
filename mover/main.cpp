// SPDX-License-Identifier: Apache-2.0
// dlrover-mover: moves a node's checkpoints to and from other nodes' memory. Started by the agent's guard.
#include <cstdio>
#include <cstring>

#include "config.h"
#include "helper/process.h"
#include "mover/service.h"
#include "transport/bulk_ucx.h"

using namespace dlrover;

namespace {

constexpr char usage_text[] =
    "usage: dlrover-mover [--help | --version]\n"
    "Moves the checkpoints of an elastic step's ranks on this node to and from other nodes' memory. Not "
    "started "
    "by hand:\n"
    "the agent of the step's first task on a node does it.\n";

int fail(const Status &status, int code) {
    std::fprintf(stderr, "dlrover-mover: %s\n", status.message().c_str());
    return code;
}

}  // namespace

int main(int argc, char **argv) {
    if (argc == 2 && std::strcmp(argv[1], "--help") == 0) return std::fputs(usage_text, stdout) < 0;
    if (argc == 2 && std::strcmp(argv[1], "--version") == 0)
        return std::puts(PACKAGE_NAME " " PACKAGE_VERSION) < 0;
    if (argc != 1) return std::fputs(usage_text, stderr) < 0 ? 1 : 2;
    auto environment = helper::read_environment();
    if (!environment) return fail(environment.status(), 2);
    if (Status status = helper::settle_in(); !status.ok()) return fail(status, 1);
    if (Status status = transport::init_crypto(); !status.ok()) return fail(status, 1);
    (void)transport::ucx_usable().ok();  // whether or not: its first call is for a program without threads
    auto outbox = helper::Outbox::create();
    if (!outbox) return fail(outbox.status(), 1);
    // The threads stay in the service for as long as the process lives.
    auto &service = *new mover::Service(*environment, std::move(*outbox));
    service.run();
}
