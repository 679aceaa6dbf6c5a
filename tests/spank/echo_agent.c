// SPDX-License-Identifier: Apache-2.0
// Stands where dlrover-agent would: tells on stderr what the module gave it, then becomes the user's command.
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char *value(const char *name) {
    const char *text = getenv(name);
    return text ? text : "-";
}

int main(int argc, char **argv) {
    const char *command = getenv("DLROVER_AGENT_ARGV0");
    if (argc < 1 || !command) return 120;
    fprintf(stderr, "agent: job=%s step=%s local=%s here=%s optional=%s socket=%s error=%s\n",
            value("DLROVER_JOB_ID"), value("DLROVER_STEP_ID"), value("DLROVER_LOCAL_TASK"),
            value("DLROVER_TASKS_HERE"), value("DLROVER_OPTIONAL"), value("DLROVER_SOCKET"),
            value("DLROVER_REGISTER_ERROR"));
    argv[0] = (char *)command;
    execvp(command, argv);
    perror(command);
    return 127;
}
