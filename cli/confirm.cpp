// SPDX-License-Identifier: Apache-2.0
#include "cli/confirm.h"

#include <unistd.h>

#include <iostream>

namespace dlrover::cli {

Result<bool> confirm(const std::string &question) {
    if (::isatty(STDIN_FILENO) != 1)
        return Status(Code::invalid_argument,
                      "there is no terminal to ask on: say --yes where this is meant");
    std::cerr << question << " [y/N] " << std::flush;
    std::string answer;
    std::getline(std::cin, answer);
    return answer == "y" || answer == "Y" || answer == "yes";
}

}  // namespace dlrover::cli
