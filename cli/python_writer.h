// SPDX-License-Identifier: Apache-2.0
// A Python program that writes what it is sent: dlrover_slurm.convert.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>

#include "base/status.h"
#include "base/unique_fd.h"

namespace dlrover::cli {

/// Interpreter: DLROVER_PYTHON, else python3, which imports nothing from the current folder. It says on
/// stderr what fails there.
class PythonWriter {
  public:
    static Result<PythonWriter> start(const std::string &format, const std::string &output);
    PythonWriter(PythonWriter &&other) noexcept
        : pid_(std::exchange(other.pid_, -1)), input_(std::move(other.input_)) {}
    PythonWriter &operator=(PythonWriter &&) = delete;
    /// A program that was not waited for is told that its input ends, and waited for.
    ~PythonWriter() { (void)finish().ok(); }

    /// A pipe. A write to it fails with EPIPE once the program has ended.
    int fd() const noexcept { return input_.get(); }
    /// Ends its input; unavailable: the program failed.
    Status finish();

  private:
    PythonWriter(pid_t pid, UniqueFd input) : pid_(pid), input_(std::move(input)) {}
    pid_t pid_;
    UniqueFd input_;
};

}  // namespace dlrover::cli
