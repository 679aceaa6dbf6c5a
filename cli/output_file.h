// SPDX-License-Identifier: Apache-2.0
// A file that has its final name only once it is whole and on the device.
#pragma once

#include <string>

#include "base/status.h"
#include "base/unique_fd.h"

namespace dlrover::cli {

/// Where nobody calls commit(), or SIGINT, SIGTERM or SIGHUP ends the process, nothing is left. One at a
/// time.
class OutputFile {
  public:
    /// `bytes`: how long it will be; a full disk shows here where the filesystem can reserve room.
    static Result<OutputFile> create(const std::string &path, std::uint64_t bytes);
    OutputFile(OutputFile &&other) noexcept;
    OutputFile &operator=(OutputFile &&) = delete;
    ~OutputFile();

    int fd() const noexcept { return fd_.get(); }
    const std::string &temporary() const noexcept { return temporary_; }
    Status commit();

  private:
    OutputFile() = default;
    std::string path_, temporary_;
    UniqueFd fd_;
};

}  // namespace dlrover::cli
