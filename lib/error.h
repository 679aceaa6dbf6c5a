// SPDX-License-Identifier: Apache-2.0
// Statuses become the C interface's codes; the sentence is kept per thread.
#pragma once

#include "base/status.h"
#include "lib/dlrover.h"

namespace dlrover::lib {

/// The C code for a status; keeps its sentence for dlrover_error_text(). DLROVER_OK leaves the old sentence.
int to_code(const Status &status) noexcept;
/// Keeps the sentence and returns the code.
int fail(int code, const char *text) noexcept;
const char *last_error_text() noexcept;

}  // namespace dlrover::lib
