// SPDX-License-Identifier: Apache-2.0
// What all helper programs say to a person.
#pragma once

#include <optional>

#include "base/status.h"

namespace dlrover::helper {

struct Program {
    const char *name;
    const char *purpose;  ///< a sentence in one line
    const char *started = "Not started by hand: the agent of the step's first task on a node does it.";
};

/// The exit code where the arguments were not for work: --help, --version, or wrong ones.
std::optional<int> take_arguments(const Program &program, int argc, char **argv);
/// Tells why the program can not go on; returns `code`.
int fail(const Program &program, const Status &status, int code);

}  // namespace dlrover::helper
