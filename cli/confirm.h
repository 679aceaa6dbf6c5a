// SPDX-License-Identifier: Apache-2.0
// Asks a person before something is done that matters.
#pragma once

#include <string>

#include "base/status.h"

namespace dlrover::cli {

/// `question`: without "[y/N]". True: yes. invalid_argument: there is no terminal to ask on.
Result<bool> confirm(const std::string &question);

}  // namespace dlrover::cli
