// SPDX-License-Identifier: Apache-2.0
// dlrover-mover: moves a node's checkpoints to and from other nodes' memory. Started by the agent's guard.
#include <system_error>

#include "helper/process.h"
#include "helper/program.h"
#include "mover/service.h"
#include "transport/bulk_ucx.h"

using namespace dlrover;

int main(int argc, char **argv) {
    constexpr helper::Program program{
        "dlrover-mover",
        "Moves the checkpoints of an elastic step's ranks on this node to and from other nodes' memory."};
    if (auto code = helper::take_arguments(program, argc, argv)) return *code;
    auto environment = helper::read_environment();
    if (!environment) return helper::fail(program, environment.status(), 2);
    if (Status status = helper::settle_in(helper::Pace::behind); !status.ok())
        return helper::fail(program, status, 1);
    if (Status status = transport::init_crypto(); !status.ok()) return helper::fail(program, status, 1);
    transport::ucx_tune();
    auto outbox = helper::Outbox::create();
    if (!outbox) return helper::fail(program, outbox.status(), 1);
    // The threads stay in the service for as long as the process lives.
    auto &service = *new mover::Service(*environment, std::move(*outbox));
    try {
        service.run();
    } catch (const std::system_error &) {  // of the queues' threads; those of a transfer end it alone
        return helper::fail(program, Status(Code::resource_exhausted, "no threads can be had"), 1);
    }
}
