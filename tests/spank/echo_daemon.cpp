// SPDX-License-Identifier: Apache-2.0
// echo_daemon SOCKET: agrees to everything the module says and prints it, a line a message, until its stdin
// ends.
#include <cstdio>
#include <sstream>

#include "tests/spank/fake_daemon.h"

using namespace dlrover::proto;

namespace {

template <typename List>
std::string join(const List &list, char separator) {
    std::ostringstream text;
    for (std::size_t i = 0; i < list.size(); ++i) {
        if (i != 0) text << separator;
        text << list[i];
    }
    return text.str();
}

std::string describe(const StepRegistrationT &s) {
    std::ostringstream text;
    text << "register cluster=" << s.cluster << " job=" << s.job_id << " step=" << s.step_id
         << " uid=" << s.uid << " gid=" << s.gid << " restarts=" << s.restart_count
         << " array=" << (s.array_job_id != 0) << "/" << s.array_task_id
         << " nodes=" << join(s.node_names, ',') << " index=" << s.node_index
         << " tasks=" << join(s.tasks_per_node, ',') << " batch=" << s.batch_host
         << " size=" << s.options->min_nodes << ":" << s.options->max_nodes << "+" << s.options->spares
         << " name=" << s.options->name << " cwd=" << s.cwd << " argv=" << join(s.argv, ' ');
    return text.str();
}

std::vector<FakeDaemon::Message> print_and_agree(const FakeDaemon::Message &message) {
    if (auto *registration = message.body.AsRegisterStep()) std::puts(describe(*registration->step).c_str());
    if (auto *end = message.body.AsEndStep()) std::printf("end job=%u step=%u\n", end->job_id, end->step_id);
    std::fflush(stdout);
    return FakeDaemon::agree(message);
}

}  // namespace

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    FakeDaemon daemon(print_and_agree, argv[1]);
    std::puts("listening");
    std::fflush(stdout);
    while (std::getchar() != EOF) {
    }
    return 0;
}
