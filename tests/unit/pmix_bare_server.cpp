// SPDX-License-Identifier: Apache-2.0
// A PMIx server as libpmix makes it, without what dlrover-pmixd adds: one client, and PMIx's own "native"
// security. Prints the client's variables, then an empty line, and serves until its stdin ends. Usage:
// pmix_bare_server FOLDER
#include <pmix_server.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    ::setenv("PMIX_MCA_gds", "hash", 1);
    ::setenv("PMIX_MCA_psec", "native", 1);
    pmix_server_module_t module{};
    pmix_info_t info[2], job[4];
    PMIX_INFO_LOAD(&info[0], PMIX_SERVER_TMPDIR, argv[1], PMIX_STRING);
    PMIX_INFO_LOAD(&info[1], PMIX_SYSTEM_TMPDIR, argv[1], PMIX_STRING);
    if (PMIx_server_init(&module, info, 2) != PMIX_SUCCESS) return 3;
    std::uint32_t size = 1;
    char *nodes = nullptr, *ranks = nullptr;
    if (PMIx_generate_regex("n0", &nodes) != PMIX_SUCCESS || PMIx_generate_ppn("0", &ranks) != PMIX_SUCCESS)
        return 7;
    PMIX_INFO_LOAD(&job[0], PMIX_JOB_SIZE, &size, PMIX_UINT32);
    PMIX_INFO_LOAD(&job[1], PMIX_LOCAL_SIZE, &size, PMIX_UINT32);
    PMIX_INFO_LOAD(&job[2], PMIX_NODE_MAP, nodes, PMIX_REGEX);
    PMIX_INFO_LOAD(&job[3], PMIX_PROC_MAP, ranks, PMIX_REGEX);
    pmix_proc_t client{};
    PMIX_LOAD_PROCID(&client, "bare", 0);
    auto done = [](pmix_status_t status) {
        return status == PMIX_SUCCESS || status == PMIX_OPERATION_SUCCEEDED;
    };
    if (!done(PMIx_server_register_nspace("bare", 1, job, 4, nullptr, nullptr))) return 4;
    if (!done(PMIx_server_register_client(&client, ::getuid(), ::getgid(), nullptr, nullptr, nullptr)))
        return 5;
    char **variables = nullptr;
    if (PMIx_server_setup_fork(&client, &variables) != PMIX_SUCCESS) return 6;
    for (char **variable = variables; *variable != nullptr; ++variable) std::puts(*variable);
    std::puts("");
    std::fflush(stdout);
    char byte;
    while (::read(STDIN_FILENO, &byte, 1) > 0) {
    }
    ::_exit(0);
}
