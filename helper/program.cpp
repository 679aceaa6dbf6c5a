// SPDX-License-Identifier: Apache-2.0
#include "helper/program.h"

#include <cstdio>
#include <string_view>

#include "config.h"

namespace dlrover::helper {
namespace {

/// False: it could not be written.
bool print_usage(const Program &program, std::FILE *out) {
    return std::fprintf(out,
                        "usage: %s [--help | --version]\n"
                        "%s\n"
                        "%s\n",
                        program.name, program.purpose, program.started) >= 0;
}

}  // namespace

std::optional<int> take_arguments(const Program &program, int argc, char **argv) {
    if (argc == 1) return {};
    std::string_view word = argc == 2 ? argv[1] : "";
    if (word == "--help") return print_usage(program, stdout) ? 0 : 1;
    if (word == "--version") return std::puts(PACKAGE_NAME " " PACKAGE_VERSION) >= 0 ? 0 : 1;
    return print_usage(program, stderr) ? 2 : 1;
}

int fail(const Program &program, const Status &status, int code) {
    std::fprintf(stderr, "%s: %s\n", program.name, status.message().c_str());
    return code;
}

}  // namespace dlrover::helper
