// SPDX-License-Identifier: Apache-2.0
#include "examples/heat/field_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "examples/heat/failure.h"

namespace heat {

void write_field(const std::string &path, const std::vector<double> &field) {
    std::string temporary = path + ".tmp";
    int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) fail(exit_failed, "%s: %s", temporary.c_str(), std::strerror(errno));
    const auto *p = reinterpret_cast<const char *>(field.data());
    for (std::size_t left = field.size() * sizeof(double); left > 0;) {
        ssize_t n = ::write(fd, p, left);
        if (n <= 0) fail(exit_failed, "%s: %s", temporary.c_str(), std::strerror(errno));
        p += n;
        left -= static_cast<std::size_t>(n);
    }
    if (::fsync(fd) != 0 || ::close(fd) != 0 || ::rename(temporary.c_str(), path.c_str()) != 0)
        fail(exit_failed, "%s: %s", path.c_str(), std::strerror(errno));
}

}  // namespace heat
