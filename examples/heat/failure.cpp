// SPDX-License-Identifier: Apache-2.0
#include "examples/heat/failure.h"

#include <unistd.h>

#include <cstdarg>
#include <cstdio>

namespace heat {
namespace {
unsigned failure_rank = 0;
}

void set_failure_rank(unsigned rank) {
    failure_rank = rank;
}

void fail(Exit code, const char *format, ...) {
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    std::fprintf(stderr, "heat[%u]: %s\n", failure_rank, line);
    std::fflush(nullptr);
    _exit(code);
}

}  // namespace heat
